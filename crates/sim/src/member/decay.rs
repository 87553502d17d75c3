//! Corruption of synced data on a log disk: a flipped bit, or a misdirected write.
//!
//! The log can distinguish corruption from a torn tail only if later data was synced, or if a
//! complete frame does not continue the chain. So only these cases are injected: a member must not
//! start from such a log.

use std::path::{Path, PathBuf};

use wal::{Finding, FrameContent, inspect};

use super::site::SimMember;
use super::start::LOG;
use crate::chance::Chance;
use crate::count::Statistic;

struct LogFrame {
    file: PathBuf,
    offset: u64,
    bytes: u64,
    group: u64,
    is_entry: bool,
}

impl SimMember {
    /// Corrupts the log of a stopped member. Returns None if the log has no data in which
    /// corruption is detectable.
    pub fn decay(&mut self, chance: &mut Chance) -> Option<Statistic> {
        assert!(self.up.is_none(), "member {} is up", self.id);
        let frames = self.frames();
        let count = match self.misdirect(&frames, chance) {
            true => Statistic::Misdirected,
            false => self.flip(&frames, chance)?,
        };
        self.damaged = true;
        Some(count)
    }

    /// Returns the frames of each file, up to the end of its chain.
    fn frames(&self) -> Vec<LogFrame> {
        let (mut frames, mut is_live) = (Vec::new(), false);
        let mut visit = |finding: Finding<'_>| match finding {
            Finding::Segment(segment) => is_live = !segment.is_void,
            Finding::Damage { .. } | Finding::Torn { .. } => is_live = false,
            Finding::Frame(frame) => {
                is_live &= frame.is_chained;
                if is_live {
                    frames.push(LogFrame {
                        file: frame.file.to_path_buf(),
                        offset: frame.offset,
                        bytes: frame.bytes,
                        group: frame.group,
                        is_entry: matches!(frame.content, FrameContent::Entry { .. }),
                    });
                }
            }
        };
        let _there_is_no_log = inspect(&self.disk, Path::new(LOG), &mut visit);
        frames
    }

    /// Overwrites the last entry of the log by an earlier one of the same length.
    fn misdirect(&mut self, frames: &[LogFrame], chance: &mut Chance) -> bool {
        let Some(last) = frames.iter().rfind(|frame| frame.is_entry) else { return false };
        let is_earlier = |frame: &&LogFrame| {
            frame.is_entry
                && frame.file == last.file
                && frame.bytes == last.bytes
                && frame.offset < last.offset
        };
        let earlier: Vec<&LogFrame> = frames.iter().filter(is_earlier).collect();
        if earlier.is_empty() || chance.per_mille(300) {
            return false;
        }
        let from = chance.pick(&earlier);
        self.disk.damage(&last.file, |bytes| {
            let range = from.offset as usize..(from.offset + from.bytes) as usize;
            bytes.copy_within(range, last.offset as usize);
        });
        true
    }

    fn flip(&mut self, frames: &[LogFrame], chance: &mut Chance) -> Option<Statistic> {
        let is_followed = |frame: &&LogFrame| {
            frames.iter().any(|other| other.file == frame.file && other.group > frame.offset)
        };
        let followed: Vec<&LogFrame> = frames.iter().filter(is_followed).collect();
        if followed.is_empty() {
            return None;
        }
        // Mostly one of the last frames, which were acknowledged last.
        let recent = if chance.per_mille(700) { followed.len().saturating_sub(4) } else { 0 };
        let frame = chance.pick(&followed[recent..]);
        let at = frame.offset + chance.within(0, frame.bytes);
        let bit = chance.within(0, 8);
        self.disk.damage(&frame.file, |bytes| bytes[at as usize] ^= 1 << bit);
        Some(Statistic::FlippedBits)
    }
}
