//! Where the captures are: those of the project in `vectors`, others where `FERROCE_CAPTURES` says.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use trace::{Capture, CapturedFrame};

/// The capture files of a folder under `vectors`, in order of their names.
pub(crate) fn vectors(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors").join(folder);
    let mut files: Vec<_> = fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ext| ext == "pcap"))
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{} holds no capture", folder.display());
    files
}

/// All capture files under `vectors`.
pub(crate) fn all_vectors() -> Vec<PathBuf> {
    ["rxe", "rxe_inject", "rxe_cm"].into_iter().flat_map(vectors).collect()
}

/// The folder of the public captures with their expected values: the one that `FERROCE_CAPTURES` names, or
/// `public` in it. Where the variable is unset, says that `test` is skipped and returns `None`.
pub(crate) fn public(test: &str) -> Option<PathBuf> {
    let Some(folder) = std::env::var_os("FERROCE_CAPTURES").map(PathBuf::from) else {
        // Straight to the stream: what is printed with the macros, a passing test does not show.
        let text = format!("{test}: skipped, FERROCE_CAPTURES is not set\n");
        std::io::stderr().write_all(text.as_bytes()).unwrap();
        return None;
    };
    let found =
        [folder.join("public"), folder.clone()].into_iter().find(|at| at.join("expected.json").is_file());
    Some(found.unwrap_or_else(|| panic!("FERROCE_CAPTURES={}: no expected.json there", folder.display())))
}

/// Gives every frame of `file` to `take`.
pub(crate) fn each_frame(file: &Path, mut take: impl FnMut(&CapturedFrame<'_>)) {
    let mut capture = Capture::new(File::open(file).unwrap()).unwrap();
    while let Some(frame) = capture.next_frame() {
        take(&frame.unwrap_or_else(|error| panic!("{} {error}", file.display())));
    }
}
