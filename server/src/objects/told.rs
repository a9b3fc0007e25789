use super::place::Service;
use object_store::Error;

/// The most characters of what a store said.
const MOST: usize = 400;

/// What failed, without what is long or may hold a signature.
pub(super) fn told(error: &Error) -> String {
    let text = chain(error);
    let element = |name: &str| {
        let (_, rest) = text.split_once(&format!("<{name}>"))?;
        rest.split_once('<').map(|(text, _)| text)
    };
    let said = match (element("Code"), element("Message")) {
        (Some(code), Some(message)) => format!("{code}: {message}"),
        (Some(code), None) => code.to_owned(),
        _ => text
            .split_whitespace()
            .map(without_query)
            .collect::<Vec<_>>()
            .join(" "),
    };
    said.chars().take(MOST).collect()
}

fn chain(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        // Most say their source themselves.
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

/// Queries of URLs are where signatures are.
fn without_query(word: &str) -> String {
    match word.split_once('?') {
        Some((before, _)) if before.contains("://") => format!("{before}?…"),
        _ => word.to_owned(),
    }
}

/// What may help.
pub(super) fn hint(service: Service, error: &Error) -> String {
    let text = chain(error);
    let (keys, address, plain, bucket) = match service {
        Service::S3 => (
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
            "AWS_ENDPOINT_URL, for another server than Amazon's, and AWS_REGION",
            "AWS_ALLOW_HTTP=true",
            "bucket",
        ),
        Service::Google => (
            "GOOGLE_APPLICATION_CREDENTIALS or GOOGLE_SERVICE_ACCOUNT",
            "the network",
            "GOOGLE_ALLOW_HTTP=true",
            "bucket",
        ),
        Service::Azure => (
            "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
            "AZURE_STORAGE_ENDPOINT, for another server than Azure's",
            "AZURE_ALLOW_HTTP=true",
            "container",
        ),
    };
    let says = |words: &[&str]| words.iter().any(|word| text.contains(word));
    // Where no keys are set, a machine of the service's own is asked for some at these addresses.
    let asked_machine = says(&["169.254.", "metadata.google.internal"]);
    if asked_machine {
        format!("no keys were found: set {keys}")
    } else if says(&["without TLS"]) {
        format!("{plain} lets requests go without TLS")
    } else if says(&["NoSuchBucket", "ContainerNotFound", "bucket does not exist"]) {
        format!("make the {bucket} first, or check its name, and {address}")
    } else if matches!(
        error,
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. }
    ) || says(&[
        "AccessKey",
        "Signature",
        "AccessDenied",
        "Forbidden",
        "Unauthorized",
        "Credential",
        "credential",
    ]) {
        format!("check {keys}, and that they may be used for this {bucket}")
    } else if matches!(error, Error::NotFound { .. }) {
        format!("check the name, and {address}")
    } else {
        format!("check {address}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> Error {
        Error::Generic {
            store: "S3",
            source: text.into(),
        }
    }

    #[test]
    fn what_a_store_says_is_cut_to_its_words_and_signatures_are_left_out() {
        let error = said(
            "Server returned 404: <?xml version=\"1.0\"?><Error><Code>NoSuchBucket</Code><Message>The specified bucket \
             does not exist</Message><RequestId>x</RequestId></Error>",
        );
        assert_eq!(told(&error), "NoSuchBucket: The specified bucket does not exist");
        assert!(hint(Service::S3, &error).starts_with("make the bucket first"));
        let error = said("Error performing PUT https://a.blob.core.windows.net/c/x?sv=1&sig=secret in 1s");
        assert_eq!(
            told(&error),
            "Generic S3 error: Error performing PUT https://a.blob.core.windows.net/c/x?… in 1s"
        );
        let error = said("Error performing PUT http://169.254.169.254/latest/api/token in 2s");
        assert!(hint(Service::S3, &error).contains("set AWS_ACCESS_KEY_ID"));
    }
}
