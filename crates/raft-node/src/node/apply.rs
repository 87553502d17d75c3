//! The apply step: committed entries into the state machine, outcomes out, reads when their index is
//! applied.
//!
//! * Entries come in log order, each once, without gaps; the first follows the machine's applied index.
//! * An install replaces all entries up to its position; requests that wait for one of them wait for it.
//! * A proposer gets its outcome after its command was applied, and all proposers of an entry after the
//!   whole entry: a single wake-up for all.
//! * A read is released when the machine has applied its index, never before.
//! * The outcome of a command reaches only the proposing member, and only if its proposer still waits: the
//!   machine gets this information, and need not produce an outcome otherwise.
//! * A batch with malformed commands is applied as an entry without commands: its bytes are equal on every
//!   member, and so is the effect. Its proposers get no outcome.
//! * A machine failure is fatal: a member that skipped a command would diverge.
//!
//! Independent of threads: a member's driver, its apply thread and the simulator call the same function.
//!
//! # Brief entries
//!
//! The driver applies brief entries itself, instead of the apply thread. A round trip to the apply thread
//! takes 40 to 80 µs; applying a put takes 4 µs. But a driver that applies does not send heartbeats. So an
//! entry is brief only if applying it certainly takes microseconds:
//!
//! * few commands and bytes, and no membership change;
//! * each command names a few keys, and reads only stored values that are in memory;
//! * the machine's store has capacity for the entry, so that it does not block.
//!
//! The machine reports the cost of a command and the state of its store. All limits are here.

use std::collections::BTreeMap;

use base::Cost;

use crate::types::Travel;
use crate::wire::{Batch, Commands};
use crate::{Answer, Fatal, LogIndex, LogPosition, Membership, StateMachine};

/// A step, created by [`crate::Node::turn`].
#[derive(Debug)]
pub struct ApplyJob<P, R> {
    kind: ApplyItem<P, R>,
}

#[derive(Debug)]
enum ApplyItem<P, R> {
    Entry {
        at: LogPosition,
        content: Option<BatchContent<P>>,
    },
    Reads {
        index: LogIndex,
        readers: Vec<R>,
    },
    /// A staged snapshot becomes the machine's state.
    Install {
        at: LogPosition,
    },
}

#[derive(Debug)]
struct BatchContent<P> {
    batch: Batch,
    /// This member's proposers, in command order; None for those that timed out.
    replies: Option<Vec<Option<P>>>,
}

impl<P, R> ApplyJob<P, R> {
    pub(super) fn empty(at: LogPosition) -> Self {
        ApplyJob { kind: ApplyItem::Entry { at, content: None } }
    }

    pub(crate) fn batch(at: LogPosition, batch: Batch, replies: Option<Vec<Option<P>>>) -> Self {
        if let Some(replies) = &replies {
            assert_eq!(replies.len(), batch.count, "a batch came back with other commands than it left with");
        }
        ApplyJob { kind: ApplyItem::Entry { at, content: Some(BatchContent { batch, replies }) } }
    }

    pub(super) fn install(at: LogPosition) -> Self {
        ApplyJob { kind: ApplyItem::Install { at } }
    }

    pub(super) fn reads(index: LogIndex, readers: Vec<R>) -> Self {
        ApplyJob { kind: ApplyItem::Reads { index, readers } }
    }
}

/// Result of a step.
#[derive(Debug)]
pub struct StepResult<P, R, O> {
    /// Position of the machine after an applied entry or an installed snapshot.
    pub entry: Option<LogPosition>,
    /// Number of its commands.
    pub commands: usize,
    /// Proposers and their outcomes, in command order.
    pub answered: Vec<(P, O)>,
    /// Proposers of a malformed batch, of which no command was applied.
    pub unanswered: Vec<P>,
    /// Readers that may read now.
    pub readable: Vec<R>,
    /// The machine's membership, after an entry that may have changed it.
    pub membership: Option<Membership>,
}

/// The state machine, and its waiting readers.
///
/// Unapplied commits are in the core; this holds only the data of the current step, and readers with a
/// future index. Their number is limited at admission.
pub struct Applier<S: StateMachine, R> {
    machine: S,
    /// Advances only when a complete entry is in the machine.
    applied: LogPosition,
    /// Readers by the index they wait for.
    waiting: BTreeMap<LogIndex, Vec<R>>,
}

impl<S: StateMachine, R> Applier<S, R> {
    pub fn new(machine: S) -> Self {
        let applied = machine.applied();
        Applier { machine, applied, waiting: BTreeMap::new() }
    }

    /// Returns the last completely applied entry.
    pub fn applied(&self) -> LogPosition {
        self.applied
    }

    pub fn machine(&self) -> &S {
        &self.machine
    }

    /// Reports whether `job` is next and takes microseconds: readers, or a brief entry.
    pub fn is_brief<P>(&mut self, job: &ApplyJob<P, R>) -> bool {
        match &job.kind {
            ApplyItem::Reads { .. } => true,
            ApplyItem::Entry { at, content: Some(BatchContent { batch, .. }) } => {
                (at.index == self.applied.index + 1 || base::mutant("brief-out-of-order"))
                    && is_brief(batch, &mut self.machine)
            }
            // Any entry may block on the capacity of the machine's store.
            ApplyItem::Entry { content: None, .. } | ApplyItem::Install { .. } => false,
        }
    }

    pub fn apply<P>(&mut self, job: ApplyJob<P, R>) -> Result<StepResult<P, R, S::Outcome>, Fatal> {
        let mut done = StepResult {
            entry: None,
            commands: 0,
            answered: Vec::new(),
            unanswered: Vec::new(),
            readable: Vec::new(),
            membership: None,
        };
        match job.kind {
            ApplyItem::Entry { at, content } => {
                let may_change = content.as_ref().is_some_and(|content| content.batch.is_change);
                self.entry(at, content, &mut done)?;
                done.entry = Some(at);
                done.membership = if may_change { self.machine.membership() } else { None };
                self.release(&mut done.readable);
            }
            ApplyItem::Install { at } => {
                assert!(at.index >= self.applied.index, "an install at {} goes back", at.index);
                self.machine.install(at)?;
                self.applied = at;
                done.entry = Some(at);
                if !base::mutant("install-without-members") {
                    done.membership = self.machine.membership();
                }
                self.release(&mut done.readable);
            }
            ApplyItem::Reads { index, readers }
                if index <= self.applied.index || base::mutant("early-reads") =>
            {
                done.readable = readers;
            }
            ApplyItem::Reads { index, readers } => self.waiting.entry(index).or_default().extend(readers),
        }
        Ok(done)
    }

    /// Applies an entry, with or without commands.
    fn entry<P>(
        &mut self,
        at: LogPosition,
        content: Option<BatchContent<P>>,
        done: &mut StepResult<P, R, S::Outcome>,
    ) -> Result<(), Fatal> {
        assert_eq!(at.index, self.applied.index + 1, "entries are applied without gaps");
        assert!(at.term >= self.applied.term, "terms never go back along the log");
        if let Some(BatchContent { batch, replies }) = content {
            match batch.commands() {
                Ok(commands) => {
                    done.commands = batch.count;
                    let travel = if batch.is_change { Travel::AsChange } else { Travel::Batched };
                    self.commands(at, travel, &commands, replies, &mut done.answered)?;
                }
                Err(error) => {
                    let index = at.index.0;
                    tracing::warn!(index, %error, "malformed batch is applied as an empty entry");
                    done.unanswered.extend(replies.into_iter().flatten().flatten());
                }
            }
        }
        self.machine.end_entry(at)?;
        // Only now: if the machine fails inside the entry, the entry was not applied.
        self.applied = at;
        Ok(())
    }

    /// Applies the commands of a batch in order and pairs outcomes with waiting proposers.
    fn commands<P>(
        &mut self,
        at: LogPosition,
        travel: Travel,
        commands: &Commands,
        replies: Option<Vec<Option<P>>>,
        answered: &mut Vec<(P, S::Outcome)>,
    ) -> Result<(), Fatal> {
        let mut replies = replies.map(Vec::into_iter);
        for command in commands.iter() {
            let reply = replies.as_mut().and_then(|replies| replies.next().flatten());
            let answer = if reply.is_some() { Answer::Wanted } else { Answer::Unwanted };
            let outcome = match travel {
                Travel::Batched => self.machine.apply(at, &command, answer)?,
                Travel::AsChange => self.machine.apply_change(at, &command, answer)?,
            };
            assert_eq!(outcome.is_some(), reply.is_some(), "an outcome exactly when it is wanted");
            answered.extend(reply.zip(outcome));
        }
        Ok(())
    }

    /// Releases the readers with an applied index. By index and not by arrival: a later reader whose round
    /// was confirmed at an earlier index need not wait.
    fn release(&mut self, readable: &mut Vec<R>) {
        while let Some(first) = self.waiting.first_entry().filter(|first| *first.key() <= self.applied.index)
        {
            readable.extend(first.remove());
        }
        assert!(self.waiting.keys().all(|index| *index > self.applied.index), "a reader was forgotten");
    }
}

/// Maximum jobs of a poll that are considered: an entry and its readers.
const JOBS_MAX: usize = 2;
/// Maximum commands and bytes of a brief entry: about as many as are applied in the time of a thread
/// wake-up.
const COMMANDS_MAX: usize = 4;
const BYTES_MAX: usize = 16 << 10;
/// Maximum keys of a command, in both branches of its transactions.
const KEYS_MAX: usize = 16;
/// Store capacity that suffices for any brief entry: its bytes, and the overhead of records.
const ROOM_BYTES: usize = 64 << 10;

/// Executes the brief jobs of a poll, and returns the remaining ones for the apply thread. `apply` returns a
/// job that is not brief; later jobs are also returned, which preserves the order.
pub fn apply_brief_first<J, E>(
    jobs: Vec<J>,
    mut apply: impl FnMut(J) -> Result<Option<J>, E>,
) -> Result<Vec<J>, E> {
    let mut rest = Vec::new();
    let are_few = jobs.len() <= JOBS_MAX;
    for job in jobs {
        if are_few && rest.is_empty() {
            rest.extend(apply(job)?);
        } else {
            rest.push(job);
        }
    }
    Ok(rest)
}

/// Reports whether an entry with this batch is brief for `machine`.
fn is_brief(batch: &Batch, machine: &mut impl StateMachine) -> bool {
    if batch.is_change || batch.count > COMMANDS_MAX || batch.bytes() > BYTES_MAX {
        return false;
    }
    if !machine.has_room(ROOM_BYTES) {
        return false;
    }
    let values_are_near = machine.values_are_near();
    let is_small = |cost: Cost| cost.keys <= KEYS_MAX && (values_are_near || !cost.reads_values);
    let commands = batch.commands();
    commands.is_ok_and(|commands| commands.iter().all(|command| machine.cost(&command).is_some_and(is_small)))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::wire::{BatchBuilder, BatchId};

    /// Records its commands, and rejects the command "die".
    #[derive(Default)]
    struct Scribe {
        lines: Vec<String>,
        applied: LogPosition,
    }

    impl StateMachine for Scribe {
        type Outcome = String;

        fn applied(&self) -> LogPosition {
            self.applied
        }

        fn apply(
            &mut self,
            at: LogPosition,
            command: &Bytes,
            answer: Answer,
        ) -> Result<Option<String>, Fatal> {
            let command = String::from_utf8(command.to_vec()).unwrap();
            if command == "die" {
                return Err(Fatal::new("apply die"));
            }
            self.lines.push(format!("{}:{command}", at.index));
            Ok((answer == Answer::Wanted).then(|| command.to_uppercase()))
        }

        fn end_entry(&mut self, at: LogPosition) -> Result<(), Fatal> {
            self.lines.push(format!("{}.", at.index));
            self.applied = at;
            Ok(())
        }

        fn membership(&self) -> Option<Membership> {
            Some(members(self.applied.index.0))
        }

        fn install(&mut self, at: LogPosition) -> Result<(), Fatal> {
            self.lines = vec![format!("={}", at.index)];
            self.applied = at;
            Ok(())
        }
    }

    /// Returns a membership with a single voter, numbered by the applied index.
    fn members(index: u64) -> Membership {
        Membership { voters: vec![index], learners: Vec::new() }
    }

    type Job = ApplyJob<&'static str, &'static str>;

    fn applier() -> Applier<Scribe, &'static str> {
        Applier::new(Scribe::default())
    }

    fn at(index: u64) -> LogPosition {
        LogPosition::new(index, 1)
    }

    fn entry(index: u64, commands: &[&str], replies: Option<&[Option<&'static str>]>) -> Job {
        let mut builder = BatchBuilder::new(BatchId { proposer: 1, nonce: 1, sequence: index }, 0);
        commands.iter().for_each(|command| builder.push(command.as_bytes()));
        let batch = Batch::parse(&builder.finish()).unwrap();
        ApplyJob::batch(at(index), batch, replies.map(<[_]>::to_vec))
    }

    #[test]
    fn an_entry_answers_those_who_wait_for_it() {
        let mut applier = applier();
        let done = applier.apply(entry(1, &["a", "b", "c"], Some(&[Some("x"), None, Some("z")]))).unwrap();
        assert_eq!(done.answered, [("x", "A".to_string()), ("z", "C".to_string())]);
        assert_eq!((done.entry, done.commands), (Some(at(1)), 3));
        let done = applier.apply(entry(2, &["d"], None)).unwrap();
        assert!(done.answered.is_empty());
        assert!(applier.apply(Job::empty(at(3))).unwrap().answered.is_empty());
        assert_eq!(applier.machine().lines, ["1:a", "1:b", "1:c", "1.", "2:d", "2.", "3."]);
        assert_eq!(applier.applied(), at(3));
    }

    #[test]
    fn a_malformed_batch_is_an_entry_without_commands() {
        let mut applier = applier();
        let mut builder = BatchBuilder::new(BatchId { proposer: 1, nonce: 1, sequence: 1 }, 0);
        builder.push(b"a");
        let sound = builder.finish();
        let mut packed = sound.to_vec();
        packed[0] = 2; // Invalid LZ4.
        for (index, payload) in [(1, sound.slice(..sound.len() - 1)), (2, packed.into())] {
            let batch = Batch::parse(&payload).unwrap();
            let done = applier.apply(ApplyJob::batch(at(index), batch, Some(vec![Some("x")]))).unwrap();
            assert_eq!((done.entry, done.commands), (Some(at(index)), 0));
            assert_eq!((done.answered, done.unanswered), (Vec::new(), vec!["x"]));
        }
        applier.apply(entry(3, &["b"], None)).unwrap();
        assert_eq!(applier.machine().lines, ["1.", "2.", "3:b", "3."]);
    }

    #[test]
    fn a_read_waits_until_its_index_is_applied() {
        let mut applier = applier();
        assert_eq!(applier.apply(Job::reads(LogIndex(0), vec!["now"])).unwrap().readable, ["now"]);
        assert!(applier.apply(Job::reads(LogIndex(2), vec!["later"])).unwrap().readable.is_empty());
        assert!(applier.apply(Job::reads(LogIndex(1), vec!["sooner"])).unwrap().readable.is_empty());
        assert_eq!(applier.apply(Job::empty(at(1))).unwrap().readable, ["sooner"]);
        assert_eq!(applier.apply(Job::empty(at(2))).unwrap().readable, ["later"]);
        assert_eq!(applier.apply(Job::reads(LogIndex(2), vec!["again"])).unwrap().readable, ["again"]);
    }

    #[test]
    fn an_install_stands_for_all_entries_up_to_it() {
        let mut applier = applier();
        applier.apply(Job::empty(at(1))).unwrap();
        assert!(applier.apply(Job::reads(LogIndex(5), vec!["inside"])).unwrap().readable.is_empty());
        assert!(applier.apply(Job::reads(LogIndex(8), vec!["after"])).unwrap().readable.is_empty());
        let done = applier.apply(Job::install(at(7))).unwrap();
        assert_eq!((done.entry, done.readable), (Some(at(7)), vec!["inside"]));
        assert_eq!(applier.apply(Job::empty(at(8))).unwrap().readable, ["after"]);
        assert_eq!(applier.machine().lines, ["=7", "8."]);
    }

    #[test]
    fn an_install_and_a_change_say_who_the_members_are_and_other_entries_do_not() {
        let mut applier = applier();
        assert_eq!(applier.apply(Job::empty(at(1))).unwrap().membership, None);
        assert_eq!(applier.apply(entry(2, &["a"], None)).unwrap().membership, None);
        let change = BatchBuilder::change(BatchId { proposer: 1, nonce: 1, sequence: 3 }, b"+2");
        let change: Job = ApplyJob::batch(at(3), Batch::parse(&change).unwrap(), None);
        assert_eq!(applier.apply(change).unwrap().membership, Some(members(3)));
        assert_eq!(applier.apply(Job::install(at(7))).unwrap().membership, Some(members(7)));
    }

    #[test]
    #[should_panic(expected = "goes back")]
    fn an_install_of_older_state_is_a_bug() {
        let mut applier = applier();
        applier.apply(Job::install(at(7))).unwrap();
        let _ = applier.apply(Job::install(at(6)));
    }

    #[test]
    fn a_machine_that_cannot_go_on_answers_nobody() {
        let mut applier = applier();
        let failed = applier.apply(entry(1, &["a", "die"], Some(&[Some("x"), Some("y")])));
        assert_eq!(failed.err().map(|fatal| fatal.what).as_deref(), Some("apply die"));
        assert_eq!(applier.applied(), LogPosition::default());
    }

    #[test]
    #[should_panic(expected = "without gaps")]
    fn a_gap_is_a_bug() {
        let _ = applier().apply(Job::empty(at(2)));
    }

    #[test]
    fn replay_goes_on_after_what_the_machine_holds() {
        let machine = Scribe { applied: at(41), ..Scribe::default() };
        let mut applier: Applier<_, &str> = Applier::new(machine);
        applier.apply(Job::empty(at(42))).unwrap();
        assert_eq!(applier.machine().lines, ["42."]);
    }

    /// A machine whose commands contain their cost: keys, and 128 if a value is read; 127 for an unbounded
    /// cost.
    struct Machine {
        room: usize,
        values_are_near: bool,
    }

    impl StateMachine for Machine {
        type Outcome = ();

        fn applied(&self) -> LogPosition {
            LogPosition::default()
        }

        fn apply(&mut self, _: LogPosition, _: &Bytes, _: Answer) -> Result<Option<()>, Fatal> {
            unreachable!("only asked")
        }

        fn end_entry(&mut self, _: LogPosition) -> Result<(), Fatal> {
            unreachable!("only asked")
        }

        fn cost(&mut self, command: &Bytes) -> Option<Cost> {
            let keys = command[0] & 0x7f;
            (keys < 127).then_some(Cost { keys: keys.into(), reads_values: command[0] >= 128 })
        }

        fn has_room(&self, bytes: usize) -> bool {
            bytes <= self.room
        }

        fn values_are_near(&self) -> bool {
            self.values_are_near
        }

        fn install(&mut self, _: LogPosition) -> Result<(), Fatal> {
            unreachable!("only asked")
        }
    }

    /// Commands, capacity and whether values are in memory, whether the entry is brief.
    type Case<'a> = (&'a [&'a [u8]], (usize, bool), bool);

    #[test]
    fn an_entry_is_brief_if_it_costs_little_and_cannot_wait() {
        let (near, far) = ((ROOM_BYTES, true), (ROOM_BYTES, false));
        let cases: [Case<'_>; 10] = [
            (&[&[1]], far, true),
            (&[&[1][..]; 4], far, true),
            (&[&[1][..]; 5], far, false),
            (&[&[16]], far, true),
            (&[&[1], &[17]], far, false),
            (&[&[127]], near, false),
            (&[&[1], &[128 + 1]], near, true),
            (&[&[1], &[128 + 1]], far, false),
            (&[&[1; BYTES_MAX + 1]], near, false),
            (&[&[1]], (ROOM_BYTES - 1, true), false),
        ];
        for (commands, (room, values_are_near), expected) in cases {
            let mut builder = BatchBuilder::new(BatchId { proposer: 1, nonce: 1, sequence: 1 }, 0);
            commands.iter().for_each(|command| builder.push(command));
            let batch = Batch::parse(&builder.finish()).unwrap();
            let brief = is_brief(&batch, &mut Machine { room, values_are_near });
            assert_eq!(brief, expected, "{} commands, first byte {}", commands.len(), commands[0][0]);
        }
    }
}
