//! Foundation's words for a file that cannot be created, copied or read.

use std::io::{self, ErrorKind};
use std::path::Path;

/// A file or directory could not be created.
pub(crate) fn creating(path: &Path, error: &io::Error) -> String {
    let (file, folder) = (name(path), path.parent().map(name).unwrap_or_default());
    match error.kind() {
        ErrorKind::PermissionDenied => {
            format!("You don’t have permission to save the file “{file}” in the folder “{folder}”.")
        }
        ErrorKind::ReadOnlyFilesystem => {
            format!("You can’t save the file “{file}” because the volume is read only.")
        }
        ErrorKind::StorageFull => out_of_space(path),
        _ => format!("The file “{file}” couldn’t be saved in the folder “{folder}”."),
    }
}

/// A file could not be written because the volume is full.
pub(crate) fn out_of_space(path: &Path) -> String {
    format!("You can’t save the file “{}” because the volume “Macintosh HD” is out of space.", name(path))
}

/// A file could not be copied into a directory.
pub(crate) fn copying(file: &Path, into: &Path, error: &io::Error) -> String {
    let (file, into) = (name(file), name(into));
    match error.kind() {
        ErrorKind::StorageFull => {
            format!("“{file}” couldn’t be copied to “{into}” because there isn’t enough space.")
        }
        ErrorKind::NotFound => format!("The file “{file}” couldn’t be opened because there is no such file."),
        _ => format!("“{file}” couldn’t be copied because you don’t have permission to access “{into}”."),
    }
}

/// A file could not be read.
pub(crate) fn reading(path: &Path, error: &io::Error) -> String {
    let file = name(path);
    match error.kind() {
        ErrorKind::NotFound => format!("The file “{file}” couldn’t be opened because there is no such file."),
        ErrorKind::PermissionDenied => {
            format!("The file “{file}” couldn’t be opened because you don’t have permission to view it.")
        }
        ErrorKind::InvalidData | ErrorKind::UnexpectedEof => not_json().into(),
        _ => format!("The file “{file}” couldn’t be opened."),
    }
}

/// A file is no JSON. The argument parser prints the decoder's error as Swift describes it.
fn not_json() -> &'static str {
    "dataCorrupted(Swift.DecodingError.Context(codingPath: [], debugDescription: \"The given data was not valid JSON.\", \
     underlyingError: Optional(Error Domain=NSCocoaErrorDomain Code=3840 \"Unexpected end of file\" \
     UserInfo={NSDebugDescription=Unexpected end of file})))"
}

fn name(path: &Path) -> String {
    path.file_name().map_or_else(|| "/".into(), |name| name.to_string_lossy().into_owned())
}
