//! Membership changes, accepted and rejected.

use api::Error;
use api::command::{MemberAdd, MemberChange, MemberUpdate, member_change::Change};
use api::etcdserverpb::Member;
use bytes::Bytes;
use mvcc::{LogPosition, MemoryBackend, StoreOptions};

use crate::command::{self, Kind};
use crate::{Answer, EtcdMachine, Genesis, Response, has_enough_started, is_removed, members};

fn member(id: u64, is_learner: bool) -> Member {
    Member { id, is_learner, peer_ur_ls: vec![format!("http://m{id}:2380")], ..Member::default() }
}

fn machine() -> EtcdMachine {
    let (writer, _, _) = mvcc::open(Box::new(MemoryBackend::new()), StoreOptions::default()).unwrap();
    let genesis = Genesis { members: vec![member(1, false), member(2, false)] };
    EtcdMachine::new(writer, &genesis).unwrap()
}

/// `+3` adds a voter, `~3` a learner (two are allowed), `-3` removes, `^3` promotes, `3=1` gives 3
/// the URL of 1, `!3` removes all but 3.
fn change(word: &str) -> Bytes {
    let url = |id: &str| vec![format!("http://m{id}:2380")];
    let number = |id: &str| id.parse::<u64>().unwrap();
    let add = |id: &str, is_learner| {
        let (id, peer_urls) = (number(id), url(id));
        Change::Add(MemberAdd { id, peer_urls, is_learner, learners_max: 2 })
    };
    let change = match (&word[..1], &word[1..]) {
        ("+", id) => add(id, false),
        ("~", id) => add(id, true),
        ("-", id) => Change::Remove(number(id)),
        ("^", id) => Change::Promote(number(id)),
        ("!", id) => Change::Retain(number(id)),
        _ => {
            let (id, of) = word.split_once('=').unwrap();
            Change::Update(MemberUpdate { id: number(id), peer_urls: url(of) })
        }
    };
    command::encode(Kind::MemberChange(MemberChange { change: Some(change), is_strict: false }))
}

/// Applies the changes, each in a separate entry. Returns the last result: ids of voters and
/// learners.
fn play(machine: &mut EtcdMachine, words: &str) -> Result<String, Error> {
    let mut answer = Ok(String::new());
    for word in words.split(' ') {
        let at = LogPosition::new(machine.applied().index.0 + 1, 1);
        let outcome = machine.apply_change(at, &change(word), Answer::Wanted).unwrap().unwrap();
        machine.end_entry(at).unwrap();
        answer = outcome.map(|response| {
            let Response::Members(listed) = response else { panic!("a change is answered by the members") };
            assert_eq!(listed, members(machine.store()).unwrap());
            let shown = listed.iter().map(|member| {
                let mark = if member.is_learner { "~" } else { "" };
                format!("{mark}{}", member.id)
            });
            shown.collect::<Vec<_>>().join(" ")
        });
    }
    answer
}

#[test]
fn changes_are_accepted_or_refused_as_in_etcd() {
    let cases = [
        ("+3", Ok("1 2 3")),
        ("~3", Ok("1 2 ~3")),
        ("~3 ^3", Ok("1 2 3")),
        ("-1", Ok("2")),
        ("~3 -3", Ok("1 2")),
        ("1=7", Ok("1 2")),
        ("1=1", Ok("1 2")),
        ("+1", Err(Error::MemberExist)),
        ("-3 +3", Ok("1 2 3")), // Never a member, so never removed.
        ("+3 -3 +3", Err(Error::MemberNotFound)),
        ("+3 -3 -3", Err(Error::MemberNotFound)),
        ("~3 -3 ^3", Err(Error::MemberNotFound)),
        ("+3 -3 3=7", Err(Error::MemberNotFound)),
        ("-3", Err(Error::MemberNotFound)),
        ("^3", Err(Error::MemberNotFound)),
        ("^1", Err(Error::MemberNotLearner)),
        ("3=7", Err(Error::MemberNotFound)),
        ("1=2", Err(Error::PeerURLExist)),
        ("1=7 +7", Err(Error::PeerURLExist)),
        ("~3 ~4 ~5", Err(Error::TooManyLearners)),
        ("~3 ~4 +5", Ok("1 2 ~3 ~4 5")),
        ("-1 -2", Err(Error::MemberNotEnoughStarted)),
        ("-1 ~3 -2", Err(Error::MemberNotEnoughStarted)),
        ("!2", Ok("2")),
        ("+3 ~4 !2", Ok("2")),
        ("!1 !1", Ok("1")),
        ("~3 !3", Ok("3")), // A learner becomes a voter.
        ("!1 +3", Ok("1 3")),
        ("!1 +2", Err(Error::MemberNotFound)), // It was removed.
        ("!3", Err(Error::MemberNotFound)),
        ("-2 !2", Err(Error::MemberNotFound)),
        ("+0", Err(Error::MemberNotFound)),
    ];
    for (words, wanted) in cases {
        let mut machine = machine();
        assert_eq!(play(&mut machine, words), wanted.map(str::to_owned), "{words}");
    }
}

#[test]
fn an_update_changes_the_peer_urls_and_keeps_the_rest() {
    let mut machine = machine();
    play(&mut machine, "~3 3=9").unwrap();
    let updated = Member { peer_ur_ls: vec!["http://m9:2380".to_owned()], ..member(3, true) };
    assert_eq!(members(machine.store()).unwrap()[2], updated);
}

#[test]
fn a_removed_member_is_remembered_in_the_store() {
    let mut machine = machine();
    play(&mut machine, "-2").unwrap();
    assert!(is_removed(machine.store(), 2) && !is_removed(machine.store(), 1));
}

#[test]
fn a_change_is_refused_in_an_entry_of_commands_and_a_command_in_that_of_a_change() {
    let mut machine = machine();
    let at = LogPosition::new(1, 1);
    let outcome = machine.apply(at, &change("-1"), Answer::Wanted).unwrap();
    assert_eq!(outcome, Some(Err(Error::NotCapable)));
    let empty = command::encode(Kind::MemberChange(MemberChange::default()));
    let compact = command::encode(Kind::Compact(api::etcdserverpb::CompactionRequest::default()));
    for command in [compact, empty, Bytes::from_static(b"\xff\xff")] {
        let outcome = machine.apply_change(at, &command, Answer::Wanted).unwrap();
        assert_eq!(outcome, Some(Err(Error::NotCapable)), "{command:?}");
    }
    assert_eq!(members(machine.store()).unwrap().len(), 2);
}

/// `1 2? ~3`: 1 has started, 2 has not, 3 is a learner. Expected result of etcd's strict check for
/// each membership change.
#[test]
fn a_change_for_which_too_few_members_have_started_is_found() {
    let member = |word: &str| Member {
        id: word.trim_matches(['~', '?']).parse().unwrap(),
        name: if word.ends_with('?') { String::new() } else { word.to_owned() },
        is_learner: word.starts_with('~'),
        ..Member::default()
    };
    let add = |is_learner| Change::Add(MemberAdd { id: 9, is_learner, ..MemberAdd::default() });
    for (members, change, wanted) in [
        ("1", add(false), true),
        ("1 2?", add(false), false),
        ("1 2?", add(true), true),
        ("1 2", add(false), true),
        ("1 2 3?", add(false), false),
        ("1 2 3 4?", add(false), true),
        ("1 2", Change::Remove(2), true),
        ("1 2?", Change::Remove(1), false),
        ("1 2?", Change::Remove(2), true),
        ("1 ~2?", Change::Remove(2), true),
        ("1 3? ~2", Change::Promote(2), true),
        ("1 3? 4? ~2", Change::Promote(2), false),
    ] {
        let listed: Vec<Member> = members.split(' ').map(member).collect();
        for is_strict in [true, false] {
            let change = Kind::MemberChange(MemberChange { change: Some(change.clone()), is_strict });
            let found = has_enough_started(&command::encode(change), &listed);
            assert_eq!(found, wanted || !is_strict, "{members}, strict: {is_strict}");
        }
    }
}
