//! Inventory of an archive: which revisions can be restored, and which objects may be removed, by the
//! objects' names.
//!
//! ```text
//!   base/00000000000000000100-001700000000000-taken.db                  state at revision 100
//!   log/00000000000000000101-00000000000000000250-001700000009000.seg   events of 101 to 250
//! ```
//!
//! A revision can be restored if there is a base at or below it, and segments cover all revisions between.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Names of the JSON objects, see `documents`.
pub const IDENTITY: &str = data_dir::ARCHIVE;
pub const HEAD: &str = "head.json";
/// Directories of bases and segments.
pub const BASES: &str = "base";
pub const SEGMENTS: &str = "log";
/// Name suffixes of bases.
const TAKEN: &str = "-taken.db";
const ASKED: &str = ".db";

/// A base: the state at one revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Base {
    pub revision: i64,
    /// Time in milliseconds since 1970. If `is_taken`, a time at which the source was at the revision.
    /// Otherwise, in the original format, the time of the request; the revision may be later.
    pub time_ms: i64,
    pub is_taken: bool,
}

impl Base {
    pub fn name(&self) -> String {
        let extension = if self.is_taken { TAKEN } else { ASKED };
        format!("{BASES}/{:020}-{:015}{extension}", self.revision, self.time_ms)
    }
}

/// A segment: the events of revisions `first` to `last`, inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Segment {
    pub first: i64,
    pub last: i64,
    /// Time when the last revision was received, in milliseconds since 1970.
    pub time_ms: i64,
}

impl Segment {
    pub fn name(&self) -> String {
        format!("{SEGMENTS}/{:020}-{:020}-{:015}.seg", self.first, self.last, self.time_ms)
    }
}

/// Bases and segments, sorted by revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory {
    pub bases: Vec<Base>,
    pub segments: Vec<Segment>,
}

/// Objects needed to restore a revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub base: Base,
    pub segments: Vec<Segment>,
}

impl Inventory {
    /// Parses the names of both directories. Unknown names are skipped.
    pub fn of(bases: &[String], segments: &[String]) -> Inventory {
        let base = |name: &String| {
            let is_taken = name.ends_with(TAKEN);
            let [revision, time_ms] = numbers(name, if is_taken { TAKEN } else { ASKED })?;
            Some(Base { revision, time_ms, is_taken })
        };
        let segment = |name: &String| {
            let [first, last, time_ms] = numbers(name, ".seg")?;
            (first <= last).then_some(Segment { first, last, time_ms })
        };
        let mut bases: Vec<Base> = bases.iter().filter_map(base).collect();
        let mut segments: Vec<Segment> = segments.iter().filter_map(segment).collect();
        bases.sort_unstable();
        segments.sort_unstable();
        Inventory { bases, segments }
    }

    /// Returns the last revision that can be restored.
    pub fn newest(&self) -> Option<i64> {
        self.bases.last().map(|base| self.reach(base.revision))
    }

    /// Returns the last revision of any object, including segments that no base connects to; 0 if empty.
    pub fn end(&self) -> i64 {
        let ends = self.segments.iter().map(|segment| segment.last);
        ends.chain(self.bases.last().map(|base| base.revision)).max().unwrap_or(0)
    }

    /// Returns the revision to resume after. Bases without a segment do not count, even if their revisions
    /// are consecutive: events before them may not have been written when the archiver stopped.
    pub fn resume(&self) -> Option<i64> {
        let ranges = self.ranges();
        let ends_in = |segment: &Segment, (first, last)| first < segment.last && segment.last <= last;
        let is_written = |range: &&(i64, i64)| self.segments.iter().any(|segment| ends_in(segment, **range));
        let written = ranges.iter().rfind(is_written);
        written.or(ranges.first()).map(|(_, last)| *last)
    }

    /// Returns the revision to resume after if the events from `last` to `to` are lost: the end of the
    /// segments that follow the first base after the gap.
    pub fn reached_after(&self, last: i64, to: i64) -> Option<i64> {
        let mut bases = self.bases.iter().map(|base| base.revision);
        bases.find(|revision| *revision >= to && *revision > last).map(|revision| self.reach(revision))
    }

    /// Returns the last revision up to which segments are complete from `from`.
    fn reach(&self, from: i64) -> i64 {
        self.segments.iter().fold(from, |to, segment| match segment.first <= to + 1 && segment.last > to {
            true => segment.last,
            false => to,
        })
    }

    /// Returns the objects needed to restore a revision. None if it is before all bases, in a gap, or not
    /// archived yet.
    ///
    /// Selects the latest base before the revision, or at the revision and not later than `time_ms`.
    /// Without one, selects the oldest base at the revision. So bases created later at that revision, after
    /// a compaction or an update of users, do not affect the result.
    pub fn plan(&self, revision: i64, time_ms: i64) -> Option<Plan> {
        let fits = |base: &&Base| base.revision <= revision && self.reach(base.revision) >= revision;
        let in_time = |base: &&Base| base.is_taken && base.time_ms <= time_ms || time_ms == i64::MAX;
        let is_of_before = |base: &&Base| fits(base) && (base.revision < revision || in_time(base));
        let base = *self.bases.iter().rfind(is_of_before).or_else(|| self.bases.iter().find(fits))?;
        let mut reached = base.revision;
        let mut segments = Vec::new();
        for segment in &self.segments {
            if reached < revision && segment.first <= reached + 1 && segment.last > reached {
                reached = segment.last;
                segments.push(*segment);
            }
        }
        Some(Plan { base, segments })
    }

    /// Returns the segments that contain the base's revision, and so must belong to the same history.
    pub fn segments_of(&self, base: &Base) -> impl Iterator<Item = &Segment> {
        let revision = base.revision;
        self.segments.iter().filter(move |segment| segment.first <= revision && segment.last >= revision)
    }

    /// Returns the latest base revision that existed at `time_ms`. Revisions inside segments are skipped,
    /// because segments record their exact time.
    pub fn base_at(&self, time_ms: i64) -> Option<i64> {
        let is_alone = |base: &Base| self.segments_of(base).next().is_none();
        let was_there = |base: &&Base| base.is_taken && base.time_ms <= time_ms && is_alone(base);
        self.bases.iter().rfind(was_there).map(|base| base.revision)
    }

    /// Returns the ranges of revisions that can be restored, inclusive.
    pub fn ranges(&self) -> Vec<(i64, i64)> {
        let mut ranges: Vec<(i64, i64)> = Vec::new();
        for base in &self.bases {
            let reach = self.reach(base.revision);
            match ranges.last_mut() {
                Some((_, last)) if base.revision <= *last + 1 => *last = reach.max(*last),
                _ => ranges.push((base.revision, reach)),
            }
        }
        ranges
    }

    /// Returns the names of the objects that are not needed for any revision that was current at or after
    /// `cutoff_ms`.
    pub fn superfluous(&self, cutoff_ms: i64) -> Vec<String> {
        let Some(oldest) = self.bases.iter().rfind(|base| base.is_taken && base.time_ms <= cutoff_ms) else {
            return Vec::new();
        };
        let is_older = |base: &&Base| (base.revision, base.time_ms) < (oldest.revision, oldest.time_ms);
        let bases = self.bases.iter().filter(is_older).map(Base::name);
        let is_before = |segment: &&Segment| segment.last <= oldest.revision;
        bases.chain(self.segments.iter().filter(is_before).map(Segment::name)).collect()
    }
}

/// Returns the current time in milliseconds since 1970.
pub fn now_ms() -> i64 {
    milliseconds(SystemTime::now())
}

/// Returns a time in milliseconds since 1970.
pub fn milliseconds(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// Formats a time in milliseconds since 1970 as `--time` takes it.
pub fn shown(time_ms: i64) -> String {
    let since = Duration::from_millis(time_ms.max(0).cast_unsigned());
    humantime::format_rfc3339_millis(UNIX_EPOCH + since).to_string()
}

/// Parses the numbers of a name, which are separated by `-`.
fn numbers<const N: usize>(name: &str, extension: &str) -> Option<[i64; N]> {
    let numbers = name.strip_suffix(extension)?.split('-').map(|digits| {
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        digits.parse().ok().filter(|number| is_number && *number <= mvcc::REVISION_MAX)
    });
    numbers.collect::<Option<Vec<i64>>>()?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `100@5` is a base, `100?5` one with an unknown capture time, `101-110@6` a segment.
    fn inventory(text: &str) -> Inventory {
        let (mut bases, mut segments) = (Vec::new(), Vec::new());
        for word in text.split_whitespace() {
            let (revisions, time) = word.split_once(['@', '?']).unwrap();
            let time_ms = time.parse().unwrap();
            let number = |digits: &str| digits.parse().unwrap();
            match revisions.split_once('-') {
                Some((first, last)) => {
                    let name = Segment { first: number(first), last: number(last), time_ms }.name();
                    segments.push(name.strip_prefix("log/").unwrap().to_owned());
                }
                None => {
                    let name =
                        Base { revision: number(revisions), time_ms, is_taken: word.contains('@') }.name();
                    bases.push(name.strip_prefix("base/").unwrap().to_owned());
                }
            }
        }
        let beyond_all = format!("{}-2.db", i64::MAX);
        bases.extend(["notes.db".to_owned(), "1-2-3.db".to_owned(), "+1-2.db".to_owned(), beyond_all]);
        segments.extend(["5-4-1.seg".to_owned(), "x.seg".to_owned()]);
        Inventory::of(&bases, &segments)
    }

    #[test]
    fn a_revision_is_made_of_the_newest_base_before_it_and_all_segments_after_that() {
        let whole = "10@1 11-20@2 21-30@3 25@3";
        let gap = "10@1 11-20@2 40@5 41-50@6";
        let overlapping = "10@1 11-20@2 15-30@3 11-12@9";
        for (text, revision, wanted) in [
            (whole, 9, None),
            (whole, 10, Some((10, 0))),
            (whole, 20, Some((10, 1))),
            (whole, 24, Some((10, 2))),
            (whole, 25, Some((10, 2))),
            (whole, 26, Some((25, 1))),
            (whole, 31, None),
            (gap, 20, Some((10, 1))),
            (gap, 21, None),
            (gap, 39, None),
            (gap, 50, Some((40, 1))),
            (overlapping, 30, Some((10, 3))),
            ("11-20@1", 15, None),
        ] {
            let plan = inventory(text).plan(revision, i64::MIN);
            let found = plan.map(|plan| (plan.base.revision, plan.segments.len()));
            assert_eq!(found, wanted, "{revision} of {text}");
        }
    }

    #[test]
    fn a_base_of_later_is_not_taken_if_another_will_do() {
        let (never, newest) = (i64::MIN, i64::MAX);
        // Bases of the same revision differ in compactions and users.
        for (text, revision, time, wanted) in [
            ("10@1 11-20@2 20@3 20@5", 20, never, "10@1"),
            ("10@1 11-20@2 20@3 20@5", 20, 2, "10@1"),
            ("10@1 11-20@2 20@3 20@5", 20, 4, "20@3"),
            ("10@1 11-20@2 20@3 20@5", 20, 5, "20@5"),
            ("10@1 11-20@2 20@3 20@5", 20, newest, "20@5"),
            ("10@1 11-20@2 20@3 20@5 21-30@6", 25, never, "20@5"),
            // No earlier base is connected to the revision.
            ("20@3 20@5", 20, never, "20@3"),
            ("20@3 20@5", 20, 4, "20@3"),
            ("20@3 20@5", 20, newest, "20@5"),
            ("10@1 12-20@2 20@3 20@5", 20, 2, "20@3"),
            // The base may have been captured after that time.
            ("10@1 11-20@2 20?3", 20, 4, "10@1"),
            ("10@1 11-20@2 20?3", 20, newest, "20@3"),
        ] {
            let base = inventory(text).plan(revision, time).unwrap().base;
            assert_eq!(format!("{}@{}", base.revision, base.time_ms), wanted, "{revision}, {time} of {text}");
        }
    }

    #[test]
    fn ranges_and_the_newest_revision_are_what_can_be_restored() {
        for (text, ranges, newest) in [
            ("", vec![], None),
            ("10@1 11-20@2 21-30@3 25@3", vec![(10, 30)], Some(30)),
            ("10@1 11-20@2 40@5 41-50@6", vec![(10, 20), (40, 50)], Some(50)),
            ("10@1 11-20@2 21@5", vec![(10, 21)], Some(21)),
            ("10@1 12-20@2", vec![(10, 10)], Some(10)),
        ] {
            let inventory = inventory(text);
            assert_eq!((inventory.ranges(), inventory.newest()), (ranges, newest), "{text}");
        }
        // Otherwise the state of another history would be combined with these segments.
        for (text, end) in [("", 0), ("10@1", 10), ("11-20@2", 20), ("10@1 12-20@2 31-40@3 35@3", 40)] {
            assert_eq!(inventory(text).end(), end, "{text}");
        }
    }

    #[test]
    fn bases_without_a_segment_are_not_gone_on_after() {
        for (text, wanted) in [
            ("", None),
            ("10@1", Some(10)),
            ("1@1 9@2", Some(1)),
            ("1@1 9@2 12@3", Some(1)),
            ("1@1 9@2 10@3", Some(1)),
            ("1@1 2@2 9@3 10@4", Some(2)),
            ("10@1 11-20@2 40@5 41@6", Some(20)),
            ("10@1 11-20@2 21@5 22@6", Some(22)),
            ("10@1 11-20@2 39-40@3 40@5 41@6", Some(20)),
            ("10@1 11-20@2 40@5", Some(20)),
            ("10@1 11-20@2 21@5", Some(21)),
            ("10@1 11-20@2 40@5 41-50@6", Some(50)),
            ("10@1 12-20@2", Some(10)),
        ] {
            assert_eq!(inventory(text).resume(), wanted, "{text}");
        }
    }

    #[test]
    fn after_a_gap_the_first_base_is_gone_on_after() {
        for (text, last, to, wanted) in [
            ("1@1 5@2 9@3", 1, 5, Some(5)),
            ("1@1 5@2 9@3", 1, 6, Some(9)),
            ("1@1 5@2 9@3", 9, 9, None),
            ("1@1 5@2 9@3", 1, 10, None),
            ("1@1 2-20@2 100@3 101-150@4 170@5", 20, 90, Some(150)),
            ("1@1 2-20@2 100@3 101-150@4 170@5", 150, 160, Some(170)),
        ] {
            assert_eq!(inventory(text).reached_after(last, to), wanted, "{last}, {to} of {text}");
        }
    }

    #[test]
    fn a_base_says_what_was_there_at_a_time_only_where_no_segment_does() {
        for (text, time, wanted) in [
            ("10@5", 4, None),
            ("10@5", 5, Some(10)),
            ("10?5", 9, None),
            ("10@5 11-20@6 40@9", 9, Some(40)),
            ("10@5 11-20@30 15@6", 9, Some(10)),
            ("10@5 11-20@6 40?9", 9, Some(10)),
        ] {
            assert_eq!(inventory(text).base_at(time), wanted, "{time} of {text}");
        }
    }

    #[test]
    fn what_no_recent_revision_needs_is_superfluous() {
        let text = "10@100 11-20@200 15@150 17?120 21-30@300 25@250";
        for (cutoff, wanted) in
            [(99, ""), (100, ""), (149, ""), (150, "10"), (250, "10 15 17 11-20"), (999, "10 15 17 11-20")]
        {
            let names = inventory(text).superfluous(cutoff);
            let short = |name: &String| {
                let bare = name.split('/').next_back().unwrap();
                let numbers: Vec<i64> = bare.split(['-', '.']).filter_map(|word| word.parse().ok()).collect();
                numbers[..numbers.len() - 1].iter().map(i64::to_string).collect::<Vec<_>>().join("-")
            };
            assert_eq!(names.iter().map(short).collect::<Vec<_>>().join(" "), wanted, "{cutoff}");
        }
        // Idle cluster.
        let idle = inventory("10@100 10@110 10@120 10@130");
        assert_eq!(idle.superfluous(120), [100, 110].map(|time_ms| Base { time_ms, ..idle.bases[0] }.name()));
    }
}
