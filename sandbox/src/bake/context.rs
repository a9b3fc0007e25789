use super::{BakeError, Layer, Recipe, layers};
use std::path::{Path, PathBuf};

/// How an image is built: `images/Dockerfile` of the repository.
pub const DOCKERFILE: &str = include_str!("../../../images/Dockerfile");

/// Its line that names the image that another is made from.
const BASE: &str = "ARG BASE=";

/// The folder of the archives, beside the Dockerfile.
const ARCHIVES: &str = "dressage";

/// The text for an image that is made from another than the usual one.
pub(crate) fn dockerfile(recipe: &Recipe) -> Result<String, BakeError> {
    let Some(from) = &recipe.from else {
        return Ok(DOCKERFILE.to_owned());
    };
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-:@/".contains(&byte);
    if from.is_empty() || !from.bytes().all(plain) {
        return Err(BakeError::Name(from.escape_debug().take(80).collect()));
    }
    let lines = DOCKERFILE.lines().map(|line| match line.strip_prefix(BASE) {
        Some(_) => format!("{BASE}{from}\n"),
        None => format!("{line}\n"),
    });
    Ok(lines.collect())
}

/// What the archive of a layer is called there.
pub(crate) fn archive_name(layer: &Layer) -> String {
    let plain = |character: char| match character {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '.' | '_' | '-' => character,
        _ => '-',
    };
    let name: String = layer.what.chars().map(plain).collect();
    format!("{ARCHIVES}/{name}.tar.gz")
}

/// Writes what an image is built of into a folder: the Dockerfile, the archives, and a card by which a Space of Hugging Face is
/// one. Archives of an earlier time go; a card that is there stays. `tap` is the static `dressage-tap`; archives are made in
/// `cache`. Returns the files that were written.
///
/// # Errors
/// [`BakeError::Pack`], [`BakeError::Write`], [`BakeError::Name`].
pub async fn write_context(
    cache: &Path,
    tap: &Path,
    recipe: &Recipe,
    folder: &Path,
) -> Result<Vec<PathBuf>, BakeError> {
    let text = dockerfile(recipe)?;
    let layers = layers(cache, tap, recipe).await?;
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| BakeError::Write { path, source }
    };
    let archives = folder.join(ARCHIVES);
    std::fs::create_dir_all(&archives).map_err(failed(&archives))?;
    for entry in std::fs::read_dir(&archives).map_err(failed(&archives))? {
        let path = entry.map_err(failed(&archives))?.path();
        if path.to_string_lossy().ends_with(".tar.gz") {
            std::fs::remove_file(&path).map_err(failed(&path))?;
        }
    }
    let mut written = Vec::new();
    let path = folder.join("Dockerfile");
    std::fs::write(&path, text).map_err(failed(&path))?;
    written.push(path);
    for layer in &layers {
        let path = folder.join(archive_name(layer));
        std::fs::copy(&layer.packed.archive, &path).map_err(failed(&path))?;
        written.push(path);
    }
    let path = folder.join("README.md");
    if !path.exists() {
        std::fs::write(&path, card(recipe, &layers)).map_err(failed(&path))?;
        written.push(path);
    }
    Ok(written)
}

fn card(recipe: &Recipe, layers: &[Layer]) -> String {
    let mut text = format!(
        "---\ntitle: {}\nsdk: docker\n---\n\nAn image for sandboxes of Dressage. Baked in:\n\n",
        recipe.name
    );
    for layer in layers {
        text.push_str(&format!("- {}\n", layer.what));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(name: &str) -> Recipe {
        Recipe {
            from: Some(name.to_owned()),
            ..Recipe::default()
        }
    }

    #[test]
    fn another_base_is_one_line_of_the_same_text() {
        let text = dockerfile(&from("registry.example:5000/team/image@sha256:01")).unwrap();
        assert_eq!(
            text.replace("registry.example:5000/team/image@sha256:01", "python:3.12"),
            DOCKERFILE
        );
        assert_ne!(text, DOCKERFILE);
        assert_eq!(dockerfile(&Recipe::default()).unwrap(), DOCKERFILE);
        for odd in ["", "a b", "a\nRUN x", "$(x)", "ä"] {
            let error = dockerfile(&from(odd)).unwrap_err();
            assert!(!error.to_string().contains('\n'), "{error}");
        }
    }
}
