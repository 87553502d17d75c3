//! The SHA-256 that `etcdctl snapshot save` appends to a file.
//!
//! A database consists of whole pages. A file whose size exceeds a multiple of 512 by 32 bytes has the
//! checksum; a copy of etcd's `member/snap/db` does not.

use std::fs::File;
use std::io::{self, Read};

use sha2::{Digest, Sha256};

const SECTOR_BYTES: u64 = 512;
const HASH_BYTES: usize = 32;
const READ_BYTES: usize = 1 << 20;

/// Presence of the checksum.
#[derive(Debug, PartialEq, Eq)]
pub enum Trailer {
    /// No checksum; the database is the whole file.
    Absent,
    /// Checksum after `database_bytes` of database.
    Present { database_bytes: u64 },
}

pub fn find(file_bytes: u64) -> Trailer {
    let hash = HASH_BYTES as u64;
    match file_bytes.checked_sub(hash) {
        Some(database_bytes) if database_bytes.is_multiple_of(SECTOR_BYTES) => {
            Trailer::Present { database_bytes }
        }
        Some(_) | None => Trailer::Absent,
    }
}

/// Reports whether the checksum matches the first `database_bytes`. Reads the file from its start.
pub fn matches(mut file: &File, database_bytes: u64) -> io::Result<bool> {
    io::Seek::rewind(&mut file)?;
    let (mut hasher, mut rest, mut buffer) = (Sha256::new(), database_bytes, vec![0; READ_BYTES]);
    while rest > 0 {
        let part = usize::try_from(rest).map_or(READ_BYTES, |rest| rest.min(READ_BYTES));
        file.read_exact(&mut buffer[..part])?;
        hasher.update(&buffer[..part]);
        rest -= part as u64;
    }
    let mut found = [0; HASH_BYTES];
    file.read_exact(&mut found)?;
    Ok(hasher.finalize()[..] == found)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_checksum_is_found_by_the_size_of_the_file() {
        for (bytes, wanted) in [
            (0, Trailer::Absent),
            (20480, Trailer::Absent),
            (20512, Trailer::Present { database_bytes: 20480 }),
            (20511, Trailer::Absent),
            (32, Trailer::Present { database_bytes: 0 }),
        ] {
            assert_eq!(find(bytes), wanted, "{bytes}");
        }
    }

    #[test]
    fn a_changed_byte_does_not_match() {
        let database = vec![7; 3 * READ_BYTES + 512];
        let hash = Sha256::digest(&database);
        for (at, matching) in [(None, true), (Some(0), false), (Some(database.len() + 31), false)] {
            let mut bytes = [&database[..], &hash[..]].concat();
            if let Some(at) = at {
                bytes[at] ^= 1;
            }
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(&bytes).unwrap();
            assert_eq!(matches(&file, database.len() as u64).unwrap(), matching, "{at:?}");
        }
    }
}
