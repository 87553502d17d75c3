//! Files of a directory that others may have made: neither a pipe nor a link, and copied with their holes.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{OFlags, SeekFrom, seek};
use rustix::io::Errno;

use crate::error::{Error, Result};

/// Bytes copied at a time.
const COPY_BYTES: usize = 256 << 10;

/// Opens a file to read it. A link or anything that is no regular file is an error, not a wait.
pub(crate) fn open_regular(path: &Path) -> Result<File> {
    let flags = (OFlags::NONBLOCK | OFlags::NOFOLLOW).bits().cast_signed();
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(path);
    let file = opened.map_err(refused("open", path))?;
    match file.metadata().map_err(refused("look at", path))?.is_file() {
        true => Ok(file),
        false => Err(Error::Refused { attempt: "open a file of the store", reason: "it is no regular file" }),
    }
}

/// Copies a file, in place of one of that name. What was never written takes no space there either.
pub(crate) fn copy_regular(from: &Path, to: &Path) -> Result<()> {
    let source = open_regular(from)?;
    let bytes = source.metadata().map_err(refused("look at", from))?.len();
    let made = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(to);
    let target = made.map_err(refused("create", to))?;
    let (mut at, mut buffer) = (0, vec![0; COPY_BYTES]);
    while at < bytes {
        let data = match seek(&source, SeekFrom::Data(at)) {
            Err(Errno::NXIO) => break,
            found => found.map_err(|errno| refused("read", from)(errno.into()))?,
        };
        let hole =
            seek(&source, SeekFrom::Hole(data)).map_err(|errno| refused("read", from)(errno.into()))?;
        at = data;
        while at < hole.min(bytes) {
            let part = COPY_BYTES.min(usize::try_from(hole.min(bytes) - at).unwrap_or(COPY_BYTES));
            source.read_exact_at(&mut buffer[..part], at).map_err(refused("read", from))?;
            target.write_all_at(&buffer[..part], at).map_err(refused("write", to))?;
            at += part as u64;
        }
    }
    target.set_len(bytes).map_err(refused("write", to))
}

/// The error for a failed operation of the file system.
pub(crate) fn refused(attempt: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_path_buf();
    move |source| Error::Io { attempt, path, source }
}
