use super::{BakeError, Layer, Recipe, layers};
use std::fs::File;
use std::io::{ErrorKind, Write};
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
/// one. Archives of an earlier time go; a card that is there stays, and so does whatever is none of ours: then nothing is written.
/// Each file is there whole or as it was. `tap` is the static `dressage-tap`; archives are made in `cache`. Returns the files that
/// were written.
///
/// # Errors
/// [`BakeError::Pack`], [`BakeError::Write`], [`BakeError::Name`], [`BakeError::Occupied`].
pub async fn write_context(
    cache: &Path,
    tap: &Path,
    recipe: &Recipe,
    folder: &Path,
) -> Result<Vec<PathBuf>, BakeError> {
    let text = dockerfile(recipe)?;
    let dockerfile = folder.join("Dockerfile");
    let earlier = earlier_archives(folder, &dockerfile)?;
    let layers = layers(cache, tap, recipe).await?;
    let archives = folder.join(ARCHIVES);
    std::fs::create_dir_all(&archives).map_err(failed(&archives))?;
    let mut written = Vec::new();
    for layer in &layers {
        let path = folder.join(archive_name(layer));
        replace(&path, |new| std::fs::copy(&layer.packed.archive, new).map(drop))?;
        written.push(path);
    }
    replace(&dockerfile, |new| std::fs::write(new, text))?;
    written.insert(0, dockerfile);
    for path in earlier.iter().filter(|path| !written.contains(path)) {
        std::fs::remove_file(path).map_err(failed(path))?;
    }
    let path = folder.join("README.md");
    match File::create_new(&path) {
        Ok(mut file) => {
            file.write_all(card(recipe, &layers).as_bytes())
                .map_err(failed(&path))?;
            written.push(path);
        }
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        Err(error) => return Err(failed(&path)(error)),
    }
    Ok(written)
}

fn failed(path: &Path) -> impl FnOnce(std::io::Error) -> BakeError {
    let path = path.to_owned();
    move |source| BakeError::Write { path, source }
}

/// The archives that were written there before, beside a Dockerfile of ours. Anything else at these places is somebody else's.
fn earlier_archives(folder: &Path, dockerfile: &Path) -> Result<Vec<PathBuf>, BakeError> {
    let occupied = |path: &Path| BakeError::Occupied(path.to_owned());
    let has_ours = match dockerfile.symlink_metadata() {
        Ok(found) if !found.is_file() => return Err(occupied(dockerfile)),
        Ok(_) => {
            let text = std::fs::read(dockerfile).map_err(failed(dockerfile))?;
            if text.split(|byte| *byte == b'\n').next() != DOCKERFILE.lines().next().map(str::as_bytes) {
                return Err(occupied(dockerfile));
            }
            true
        }
        Err(_) => false,
    };
    let archives = folder.join(ARCHIVES);
    let entries = match std::fs::read_dir(&archives) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed(&archives))?,
    };
    let mut earlier = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed(&archives))?.path();
        if path.to_string_lossy().ends_with(".tar.gz") {
            if !has_ours {
                return Err(occupied(&path));
            }
            earlier.push(path);
        }
    }
    Ok(earlier)
}

/// Has a file made beside its place, and moved there when it is whole.
fn replace(path: &Path, make: impl FnOnce(&Path) -> std::io::Result<()>) -> Result<(), BakeError> {
    let new = path.with_extension("new");
    let made = make(&new).and_then(|()| std::fs::rename(&new, path));
    made.map_err(|error| {
        // It is not there where it could not be made.
        let _ = std::fs::remove_file(&new);
        failed(path)(error)
    })
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
