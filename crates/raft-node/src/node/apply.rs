//! The apply step: committed entries into the state machine, outcomes out, read points when their time has
//! come.
//!
//! * Entries come in log order, each once, without gaps; the first is the one after what the machine had
//!   applied.
//! * An install stands for all entries up to its position; what waits for one of them waits for it.
//! * A proposer is answered after its command, and all of an entry's after the whole entry: one wake-up for
//!   all.
//! * A read point is given out when the machine has applied its index, never before.
//! * The outcome of a command reaches only the member where it was proposed, and only if its proposer still
//!   waits: the machine knows, and need not make an answer.
//! * A batch whose commands cannot be taken out is applied as an entry without commands: its bytes are equal
//!   on every member, and so is what they do with it. Its proposers get no outcome.
//! * A machine that fails is fatal: a member that skipped a command would differ from the others from then
//!   on.
//!
//! Knows nothing of threads: a member's driver, its apply thread and the simulator call the same function.
//!
//! # Brief entries
//!
//! The driver applies some entries itself, in place of the apply thread: the brief ones. To wake the apply
//! thread and to be woken by it takes 40 to 80 µs; to apply a put takes 4 µs. But a driver that applies sends
//! no heartbeat meanwhile. So an entry is brief if applying it takes microseconds for certain:
//!
//! * few commands and bytes, and no change of the members;
//! * each command names a few keys, and reads stored values only if those are in memory;
//! * the machine's store has room for the entry, so that its end does not wait.
//!
//! The machine says what a command costs and in which state its store is. Every limit is here.

use std::collections::BTreeMap;

use base::Cost;

use crate::types::Travel;
use crate::wire::{Batch, Commands};
use crate::{Answer, Fatal, LogIndex, LogPosition, Membership, StateMachine};

/// One step, made by [`crate::Node::turn`].
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
    /// This member's proposers, in the order of the commands; None for those whose time was up.
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

/// What one step brought.
#[derive(Debug)]
pub struct StepResult<P, R, O> {
    /// How far the machine is now, if the step moved it: an entry was applied, or a snapshot installed.
    pub entry: Option<LogPosition>,
    /// Commands in it.
    pub commands: usize,
    /// Proposers and their outcomes, in the order of the commands.
    pub answered: Vec<(P, O)>,
    /// Proposers that waited for an entry whose batch is malformed: none of its commands was applied.
    pub unanswered: Vec<P>,
    /// Readers that may read now.
    pub readable: Vec<R>,
    /// What the machine says of the members, after an entry that may have changed them.
    pub membership: Option<Membership>,
}

/// The state machine, and the readers that wait for it.
///
/// Commits that are not applied yet are in the core; here is only what the present step needs, and readers
/// whose index lies ahead. Their number is bounded where readers enter.
pub struct Applier<S: StateMachine, R> {
    machine: S,
    /// Moves only when a whole entry is in the machine.
    applied: LogPosition,
    /// Readers by the index they wait for.
    waiting: BTreeMap<LogIndex, Vec<R>>,
}

impl<S: StateMachine, R> Applier<S, R> {
    pub fn new(machine: S) -> Self {
        let applied = machine.applied();
        Applier { machine, applied, waiting: BTreeMap::new() }
    }

    /// The last entry whose commands are all in the machine.
    pub fn applied(&self) -> LogPosition {
        self.applied
    }

    pub fn machine(&self) -> &S {
        &self.machine
    }

    /// Whether `job` is next and takes microseconds: readers, or a brief entry.
    pub fn is_brief<P>(&mut self, job: &ApplyJob<P, R>) -> bool {
        match &job.kind {
            ApplyItem::Reads { .. } => true,
            ApplyItem::Entry { at, content: Some(BatchContent { batch, .. }) } => {
                (at.index == self.applied.index + 1 || base::mutant("brief-out-of-order"))
                    && is_brief(batch, &mut self.machine)
            }
            // The end of any entry may wait for room in the machine's store.
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

    /// Applies one entry, with or without commands.
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
                    tracing::warn!(index, %error, "a malformed batch is applied as an empty entry");
                    done.unanswered.extend(replies.into_iter().flatten().flatten());
                }
            }
        }
        self.machine.end_entry(at)?;
        // Only now: should the machine fail inside the entry, the entry was not applied.
        self.applied = at;
        Ok(())
    }

    /// Applies the commands of a batch in order and pairs outcomes with those who wait for them.
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

    /// Gives out the readers whose index is applied now. By index and not by arrival: a later reader whose
    /// round was confirmed at an earlier index need not wait for the others.
    fn release(&mut self, readable: &mut Vec<R>) {
        while let Some(first) = self.waiting.first_entry().filter(|first| *first.key() <= self.applied.index)
        {
            readable.extend(first.remove());
        }
        assert!(self.waiting.keys().all(|index| *index > self.applied.index), "a reader was forgotten");
    }
}

/// Jobs of a turn that are looked at: an entry and its readers.
const JOBS_MAX: usize = 2;
/// Commands and bytes of an entry: about as many as are applied in the time that a thread takes to wake up.
const COMMANDS_MAX: usize = 4;
const BYTES_MAX: usize = 16 << 10;
/// Keys that a command names, in both branches of its transactions.
const KEYS_MAX: usize = 16;
/// Room in the store that is enough for any brief entry: its bytes, and what records take besides.
const ROOM_BYTES: usize = 64 << 10;

/// Carries out the jobs of a turn that are brief, and returns those for the apply thread. `apply` gives back
/// a job that is not brief; the jobs after it wait with it, so that the order stays.
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

/// Whether an entry with this batch is brief for `machine`.
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

    /// Records its commands, and refuses the command "die".
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

    /// One voter, by the entry that a scribe stands at.
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
        packed[0] = 2; // LZ4 that is none.
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

    /// Commands say what they cost: keys, and 128 if a value is read; 127 for a cost without a bound.
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

    /// Commands, room and whether values are near, whether the entry is brief.
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
