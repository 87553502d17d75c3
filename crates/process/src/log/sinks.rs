//! Destinations of log lines: standard error and output, files, and systemd's journal.

use std::fs::File;
use std::io::{self, IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{MemfdFlags, OFlags, SealFlags, fcntl_add_seals, fcntl_getfl, fcntl_setfl, memfd_create};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tracing::Level;

use super::outlet::{QueuedLine, Sink, Unwritten};
use super::rotation::{self, Rotation};

/// Maximum bytes per write to an output.
const WRITE_BYTES: usize = 64 << 10;
const JOURNAL: &str = "/run/systemd/journal/socket";

pub struct Standard<W>(pub Whole<W>);

impl<W: Write + Send> Sink for Standard<W> {
    fn write(&mut self, lines: &[QueuedLine]) -> Result<(), Unwritten> {
        let mut lines = lines;
        while !lines.is_empty() {
            let (text, rest) = joined(lines, u64::MAX);
            self.0.write(&text).map_err(|_| Unwritten(lines.len()))?;
            lines = rest;
        }
        Ok(())
    }
}

/// Joins the first lines into a text of at most `bytes`, but at least one line. Returns the text and the
/// remaining lines.
fn joined(lines: &[QueuedLine], bytes: u64) -> (String, &[QueuedLine]) {
    let mut text = String::new();
    let mut count = 0;
    for line in lines {
        let length = text.len() + line.text.len();
        if count > 0 && (length > WRITE_BYTES || length as u64 > bytes) {
            break;
        }
        text.push_str(&line.text);
        count += 1;
    }
    (text, &lines[count..])
}

/// Writer of whole lines: after a write error within a line, the next text starts on a new line.
#[derive(Debug)]
pub struct Whole<W> {
    to: W,
    is_cut: bool,
}

impl<W: Write> Whole<W> {
    pub fn new(to: W) -> Whole<W> {
        Whole { to, is_cut: false }
    }

    fn write(&mut self, text: &str) -> io::Result<()> {
        if self.is_cut {
            self.to.write_all(b"\n")?;
            self.is_cut = false;
        }
        let bytes = text.as_bytes();
        let mut written = 0;
        while written < bytes.len() {
            match self.to.write(&bytes[written..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    written += count;
                    self.is_cut = bytes[written - 1] != b'\n';
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// A file that is appended to, and rotated when it is full.
pub struct LogFile {
    path: PathBuf,
    /// None if the last attempt to open it failed.
    open: Option<(Whole<File>, u64)>,
    rotation: Option<Rotation>,
    /// Mode of new files: that of the last file, which the operator may have changed.
    mode: u32,
}

impl LogFile {
    pub fn open(path: &Path, rotation: Option<Rotation>) -> io::Result<LogFile> {
        let mode = 0o644;
        let (file, length) = open(path, mode)?;
        // A pipe or device is never full and must not be renamed.
        let is_regular = file.to.metadata()?.is_file();
        let rotation = rotation.filter(|_| is_regular);
        Ok(LogFile { path: path.to_owned(), open: Some((file, length)), rotation, mode })
    }

    fn current(&mut self) -> io::Result<&mut (Whole<File>, u64)> {
        if self.open.is_none() {
            self.open = Some(open(&self.path, self.mode)?);
        }
        let current = self.open.as_mut().expect("it was just opened");
        let (file, length) = &mut *current;
        if file.is_cut {
            // The file contains a partial line, unless another program has truncated it.
            let metadata = file.to.metadata()?;
            *length = metadata.len();
            file.is_cut = metadata.len() > 0 || !metadata.is_file();
        }
        Ok(current)
    }

    /// Writes as many lines as fit, at least one, and returns the remaining lines.
    fn write_first<'a>(&mut self, lines: &'a [QueuedLine]) -> io::Result<&'a [QueuedLine]> {
        let length = self.current()?.1;
        let first_bytes = lines.first().map_or(0, |line| line.text.len() as u64);
        let mut left = u64::MAX;
        if let Some(rotation) = self.rotation.clone() {
            left = rotation.bytes_max.saturating_sub(length);
            if length > 0 && first_bytes > left {
                self.rotate(&rotation);
                left = rotation.bytes_max;
            }
        }
        let (text, rest) = joined(lines, left);
        let (file, length) = self.current()?;
        file.write(&text)?;
        *length += text.len() as u64;
        Ok(rest)
    }

    /// Renames the full file. If that fails, lines are still appended to it.
    fn rotate(&mut self, rotation: &Rotation) {
        let backup = rotation::backup(&self.path, SystemTime::now());
        if std::fs::rename(&self.path, backup).is_ok() {
            let metadata = self.open.take().and_then(|(file, _)| file.to.metadata().ok());
            self.mode = metadata.map_or(self.mode, |metadata| metadata.permissions().mode() & 0o777);
            rotation.tidy_in_background(&self.path);
        }
    }
}

impl Sink for LogFile {
    fn write(&mut self, lines: &[QueuedLine]) -> Result<(), Unwritten> {
        let mut lines = lines;
        while !lines.is_empty() {
            lines = self.write_first(lines).map_err(|_| Unwritten(lines.len()))?;
        }
        Ok(())
    }

    fn reopen(&mut self) {
        // If the name cannot be opened, lines are still appended to the open file.
        if let Ok(opened) = open(&self.path, self.mode) {
            self.open = Some(opened);
        }
    }
}

/// Opens a file for appending. Fails for a pipe without a reader, instead of blocking.
fn open(path: &Path, mode: u32) -> io::Result<(Whole<File>, u64)> {
    let mut options = File::options();
    let at_once = OFlags::NONBLOCK.bits().cast_signed();
    let file = options.append(true).create(true).mode(mode).custom_flags(at_once).open(path)?;
    fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    let metadata = file.metadata()?;
    let length = metadata.len();
    // A full disk or a crash may have left a partial last line.
    let has_lines = metadata.is_file() && length > 0;
    let is_cut = has_lines && last_byte(path, length).is_ok_and(|byte| byte != b'\n');
    Ok((Whole { to: file, is_cut }, length))
}

fn last_byte(path: &Path, length: u64) -> io::Result<u8> {
    let mut byte = [0];
    File::open(path)?.read_exact_at(&mut byte, length - 1)?;
    Ok(byte[0])
}

/// systemd's journal, by its native protocol: a datagram per line. A line too large for the socket is sent as
/// the descriptor of a sealed file in memory. A line that cannot be sent does not affect other lines.
pub struct SystemdJournal {
    path: PathBuf,
    socket: UnixDatagram,
}

impl SystemdJournal {
    pub fn open() -> io::Result<SystemdJournal> {
        SystemdJournal::at(Path::new(JOURNAL))
    }

    fn at(path: &Path) -> io::Result<SystemdJournal> {
        let socket = UnixDatagram::unbound()?;
        socket.connect(path)?;
        Ok(SystemdJournal { path: path.to_owned(), socket })
    }

    fn send(&self, datagram: &[u8]) -> io::Result<()> {
        self.send_once(datagram).or_else(|_| {
            // A restarted journal may have a new socket at its path.
            self.socket.connect(&self.path)?;
            self.send_once(datagram)
        })
    }

    fn send_once(&self, datagram: &[u8]) -> io::Result<()> {
        match self.socket.send(datagram) {
            Err(error) if is_too_large(&error) => self.send_in_memory(datagram),
            sent => sent.map(drop),
        }
    }

    /// Sends a datagram as a file in memory. The journal accepts it because the seals prevent changes while
    /// it is read.
    fn send_in_memory(&self, datagram: &[u8]) -> io::Result<()> {
        let file = memfd_create("journal-line", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        let mut file = File::from(file);
        file.write_all(datagram)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL)?;
        let descriptors = [file.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
        sendmsg(&self.socket, &[IoSlice::new(&[])], &mut ancillary, SendFlags::empty())?;
        Ok(())
    }
}

/// Reports whether the datagram exceeds the socket's buffer, or the contiguous memory available to the
/// kernel.
fn is_too_large(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MSGSIZE | Errno::NOBUFS))
}

impl Sink for SystemdJournal {
    fn write(&mut self, lines: &[QueuedLine]) -> Result<(), Unwritten> {
        let unsent = lines.iter().filter(|line| self.send(&datagram(line)).is_err()).count();
        if unsent == 0 { Ok(()) } else { Err(Unwritten(unsent)) }
    }
}

fn datagram(line: &QueuedLine) -> Vec<u8> {
    let priority = match line.level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    };
    let text = line.text.trim_end();
    let mut datagram = format!("PRIORITY={priority}\nSYSLOG_IDENTIFIER=kv-server\nMESSAGE\n").into_bytes();
    // The length prefix permits line breaks in the text.
    datagram.extend_from_slice(&(text.len() as u64).to_le_bytes());
    datagram.extend_from_slice(text.as_bytes());
    datagram.push(b'\n');
    datagram
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::io::IoSliceMut;
    use std::os::fd::OwnedFd;

    use rustix::fs::{CWD, FileType, Mode, fcntl_get_seals, mknodat};
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

    use super::*;

    fn lines(texts: &[&str]) -> Vec<QueuedLine> {
        texts.iter().map(|text| QueuedLine { level: Level::INFO, text: (*text).into() }).collect()
    }

    /// Accepts bytes up to a remaining capacity.
    struct Disk(usize, Vec<u8>);

    impl Write for &mut Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let taken = bytes.len().min(self.0);
            self.0 -= taken;
            self.1.extend_from_slice(&bytes[..taken]);
            if taken == 0 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(taken) }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_that_was_cut_short_ends_before_the_next_one() {
        let mut disk = Disk(7, Vec::new());
        let mut standard = Standard(Whole::new(&mut disk));
        standard.write(&lines(&["first\n", "second\n"])).unwrap_err();
        standard.0.to.0 = 100;
        standard.write(&lines(&["third\n"])).unwrap();
        assert_eq!(disk.1, b"first\ns\nthird\n");
    }

    #[test]
    fn a_full_file_is_moved_away_and_the_oldest_backups_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kv.log");
        std::fs::write(&path, "old\n").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        let rotation = Rotation { bytes_max: 10, backups_max: 2, ..Rotation::default() };
        let mut file = LogFile::open(&path, Some(rotation.clone())).unwrap();
        file.write(&lines(&["one\n", "two\n", "three\n", "longer than the file\n", "four\n"])).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "four\n");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        rotation.tidy(&path, SystemTime::now()).unwrap();
        let mut backups: Vec<String> = rotation::backups(&path)
            .unwrap()
            .into_iter()
            .map(|(_, path)| std::fs::read_to_string(path).unwrap())
            .collect();
        backups.sort();
        assert_eq!(backups, ["longer than the file\n", "two\nthree\n"]);
    }

    #[test]
    fn a_pipe_is_not_moved_away() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pipe");
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let at_once = OFlags::NONBLOCK.bits().cast_signed();
        let mut reader = File::options().read(true).custom_flags(at_once).open(&path).unwrap();
        let rotation = Rotation { bytes_max: 3, ..Rotation::default() };
        let mut file = LogFile::open(&path, Some(rotation)).unwrap();
        file.write(&lines(&["first\n", "second\n"])).unwrap();
        let mut text = [0; 64];
        let read = io::Read::read(&mut reader, &mut text).unwrap();
        assert_eq!(&text[..read], b"first\nsecond\n");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_journal_that_is_started_again_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let first = UnixDatagram::bind(&path).unwrap();
        let mut journal = SystemdJournal::at(&path).unwrap();
        journal.write(&lines(&["a\n"])).unwrap();
        drop(first);
        journal.write(&lines(&["lost\n"])).unwrap_err();
        std::fs::remove_file(&path).unwrap();
        let second = UnixDatagram::bind(&path).unwrap();
        journal.write(&lines(&["b\n"])).unwrap();
        let mut text = [0; 128];
        let read = second.recv(&mut text).unwrap();
        assert!(text[..read].ends_with(b"b\n"));
    }

    #[test]
    fn a_line_larger_than_a_datagram_is_sent_in_memory_and_others_go_on() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let socket = UnixDatagram::bind(&path).unwrap();
        let mut journal = SystemdJournal::at(&path).unwrap();
        let large = "x".repeat(4 << 20);
        journal.write(&lines(&["a\n", &large, "b\n"])).unwrap();
        let (text, files) = receive(&socket);
        assert!(text.ends_with(b"a\n") && files.is_empty());
        let (text, files) = receive(&socket);
        assert!(text.is_empty());
        assert!(fcntl_get_seals(&files[0]).unwrap().contains(SealFlags::WRITE | SealFlags::SHRINK));
        let mut file = File::from(files.into_iter().next().unwrap());
        let mut sent = Vec::new();
        std::io::Seek::rewind(&mut file).unwrap();
        io::Read::read_to_end(&mut file, &mut sent).unwrap();
        assert!(sent == datagram(&lines(&[&large])[0]), "{} bytes", sent.len());
        let (text, files) = receive(&socket);
        assert!(text.ends_with(b"b\n") && files.is_empty());
    }

    /// Returns a datagram and the files sent with it.
    fn receive(socket: &UnixDatagram) -> (Vec<u8>, Vec<OwnedFd>) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut text = vec![0; 1024];
        let read = recvmsg(socket, &mut [IoSliceMut::new(&mut text)], &mut ancillary, RecvFlags::empty());
        text.truncate(read.unwrap().bytes);
        let files = ancillary.drain().flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(files) => files.collect(),
            _ => Vec::new(),
        });
        (text, files.collect())
    }

    #[test]
    fn each_line_that_the_journal_does_not_get_is_counted() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let socket = UnixDatagram::bind(&path).unwrap();
        let mut journal = SystemdJournal::at(&path).unwrap();
        drop(socket);
        assert_eq!(journal.write(&lines(&["a\n", "b\n"])), Err(Unwritten(2)));
    }

    #[test]
    fn a_file_is_continued_by_a_whole_line_and_begins_with_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kv.log");
        let read = || std::fs::read_to_string(&path).unwrap();
        let rotation = Rotation { bytes_max: 20, ..Rotation::default() };
        // State after a full disk; the process has exited, or continues.
        std::fs::write(&path, "cut").unwrap();
        let mut file = LogFile::open(&path, Some(rotation)).unwrap();
        file.write(&lines(&["a\n"])).unwrap();
        assert_eq!(read(), "cut\na\n");
        let cut = |file: &mut LogFile| {
            let (whole, _) = file.open.as_mut().unwrap();
            whole.to.write_all(b"cut").unwrap();
            whole.is_cut = true;
        };
        // Another program truncates the file to free space.
        cut(&mut file);
        std::fs::File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
        file.write(&lines(&["b\n"])).unwrap();
        assert_eq!(read(), "b\n");
        // Written bytes of a partial line count, and the next file starts with a whole line.
        cut(&mut file);
        file.write(&lines(&["sixteen bytes..\n"])).unwrap();
        assert_eq!(read(), "sixteen bytes..\n");
        let backups = rotation::backups(&path).unwrap();
        assert_eq!(std::fs::read_to_string(&backups[0].1).unwrap(), "b\ncut");
    }

    #[test]
    fn a_file_that_was_moved_is_opened_again_by_its_name() {
        let directory = tempfile::tempdir().unwrap();
        let (path, moved) = (directory.path().join("kv.log"), directory.path().join("kv.log.1"));
        let mut file = LogFile::open(&path, None).unwrap();
        file.write(&lines(&["a\n"])).unwrap();
        std::fs::rename(&path, &moved).unwrap();
        file.write(&lines(&["b\n"])).unwrap();
        file.reopen();
        file.write(&lines(&["c\n"])).unwrap();
        assert_eq!(std::fs::read_to_string(moved).unwrap(), "a\nb\n");
        assert_eq!(std::fs::read_to_string(path).unwrap(), "c\n");
    }

    #[test]
    fn a_full_device_is_an_error() {
        let mut file = LogFile::open(Path::new("/dev/full"), None).unwrap();
        file.write(&lines(&["a\n"])).unwrap_err();
    }

    #[test]
    fn the_journal_gets_the_level_and_the_length_of_a_line() {
        let line = QueuedLine { level: Level::WARN, text: "a\nb\n".into() };
        let wanted = b"PRIORITY=4\nSYSLOG_IDENTIFIER=kv-server\nMESSAGE\n\x03\0\0\0\0\0\0\0a\nb\n";
        assert_eq!(datagram(&line), wanted);
    }
}
