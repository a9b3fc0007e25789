use std::collections::BTreeMap;

/// What of a request in another dialect is needed to translate the reply to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WayBack {
    /// Tools that are something else in the agent's dialect than a function of that name, by the function's name.
    pub tools: BTreeMap<String, ToolForm>,
    /// Members of the request that the reply repeats, as JSON text.
    pub echo: Vec<(String, String)>,
    /// Reasoning is shown as its summary.
    pub summary: bool,
    /// The agent wants reasoning in a form that it can hand back without reading it.
    pub opaque_reasoning: bool,
}

/// What a function stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolForm {
    /// A tool that takes a text as it is: the function's only argument.
    Custom {
        /// Its name.
        name: String,
    },
    /// A function of a namespace.
    Namespaced {
        /// The namespace.
        namespace: String,
        /// Its name in there.
        name: String,
    },
}
