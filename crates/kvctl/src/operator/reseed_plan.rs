//! Plan of a re-seeding: computes the next step from the state of the cluster.

use api::etcdserverpb::{AlarmMember, AlarmType, Member};

/// Observed state of a cluster.
pub struct KnownCluster<'a> {
    pub members: &'a [Member],
    pub alarms: &'a [AlarmMember],
    /// IDs of the reachable members.
    pub answering: &'a [u64],
    /// ID of the leader; 0 if unknown.
    pub leader: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ReseedStep<'a> {
    /// The member has no alarm.
    Nothing,
    /// The member is not reachable.
    AwaitAnswer,
    /// The leader has a CORRUPT alarm as well, so its state is not usable. It transfers its leadership within
    /// seconds.
    AwaitLeader { leader: u64 },
    /// The member can install the leader's state.
    Reseed(&'a Member),
}

/// Reason why a member cannot be re-seeded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReseedRefusal {
    #[error("{0} is not a member of the cluster")]
    NoSuchMember(String),
    #[error("{name} is the name of {count} members: use the ID of one of them")]
    Ambiguous { name: String, count: usize },
    #[error(
        "the alarm CORRUPT names no member: no majority agrees which state is right. Compare the members with \
         etcdctl endpoint hashkv, and replace or restore those that are wrong"
    )]
    NoMajority,
    #[error(
        "without {name}, {answering}/{voters} voters are up, which is not a quorum: if it stops while its \
         state is replaced, the cluster would serve nothing. Not answering: {silent}"
    )]
    Quorum { name: String, answering: usize, voters: usize, silent: String },
}

impl KnownCluster<'_> {
    /// Reports whether a member has a CORRUPT alarm. ID 0 means an alarm without a member.
    fn is_corrupt(&self, member_id: u64) -> bool {
        self.alarms.contains(&AlarmMember { member_id, alarm: AlarmType::Corrupt as i32 })
    }

    fn answers(&self, member: &Member) -> bool {
        self.answering.contains(&member.id)
    }

    /// Finds the member by name, or by hexadecimal ID.
    fn member(&self, wanted: &str) -> Result<&Member, ReseedRefusal> {
        let id = u64::from_str_radix(wanted.trim_start_matches("0x"), 16).ok();
        if let Some(member) = self.members.iter().find(|member| Some(member.id) == id) {
            return Ok(member);
        }
        let named: Vec<&Member> = self.members.iter().filter(|member| member.name == wanted).collect();
        match named[..] {
            [] => Err(ReseedRefusal::NoSuchMember(wanted.to_owned())),
            [member] => Ok(member),
            _ => Err(ReseedRefusal::Ambiguous { name: wanted.to_owned(), count: named.len() }),
        }
    }

    /// Returns an error unless the reachable voters without `member` form a quorum.
    fn check_quorum(&self, member: &Member, name: &str) -> Result<(), ReseedRefusal> {
        let voters: Vec<&Member> = self.members.iter().filter(|member| !member.is_learner).collect();
        let others = || voters.iter().filter(|voter| voter.id != member.id);
        let answering = others().filter(|voter| self.answers(voter)).count();
        if answering > voters.len() / 2 {
            return Ok(());
        }
        let silent: Vec<&str> =
            others().filter(|voter| !self.answers(voter)).map(|voter| voter.name.as_str()).collect();
        let silent = if silent.is_empty() { "none".to_owned() } else { silent.join(", ") };
        Err(ReseedRefusal::Quorum { name: name.to_owned(), answering, voters: voters.len(), silent })
    }
}

/// Returns the next step for the member with a name or ID.
pub fn next<'a>(cluster: &'a KnownCluster<'_>, wanted: &str) -> Result<ReseedStep<'a>, ReseedRefusal> {
    let member = cluster.member(wanted)?;
    if !cluster.is_corrupt(member.id) {
        return if cluster.is_corrupt(0) { Err(ReseedRefusal::NoMajority) } else { Ok(ReseedStep::Nothing) };
    }
    if cluster.leader != member.id && cluster.leader != 0 && cluster.is_corrupt(cluster.leader) {
        return Ok(ReseedStep::AwaitLeader { leader: cluster.leader });
    }
    cluster.check_quorum(member, wanted)?;
    Ok(if cluster.answers(member) { ReseedStep::Reseed(member) } else { ReseedStep::AwaitAnswer })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each word is a member: `a!` is unreachable, `*a` is the leader, `~a` a learner, `a#` has an alarm.
    /// `0#` is an alarm without a member. IDs start at a0.
    fn step(cluster: &str, wanted: &str) -> String {
        let (mut members, mut alarms, mut answering, mut leader) = (Vec::new(), Vec::new(), Vec::new(), 0);
        for (position, word) in cluster.split_whitespace().enumerate() {
            let name = word.trim_matches(['!', '*', '~', '#']).to_owned();
            let id = if name == "0" { 0 } else { 0xa0 + position as u64 };
            if word.contains('#') {
                alarms.push(AlarmMember { member_id: id, alarm: AlarmType::Corrupt as i32 });
            }
            if id == 0 {
                continue;
            }
            if !word.contains('!') {
                answering.push(id);
            }
            if word.contains('*') {
                leader = id;
            }
            members.push(Member { id, name, is_learner: word.contains('~'), ..Member::default() });
        }
        let cluster = KnownCluster { members: &members, alarms: &alarms, answering: &answering, leader };
        match next(&cluster, wanted) {
            Ok(ReseedStep::Nothing) => "nothing".to_owned(),
            Ok(ReseedStep::AwaitAnswer) => "await".to_owned(),
            Ok(ReseedStep::AwaitLeader { leader }) => format!("await a leader other than {leader:x}"),
            Ok(ReseedStep::Reseed(member)) => format!("reseed {}", member.name),
            Err(refusal) => refusal.to_string(),
        }
    }

    #[test]
    fn each_state_of_the_cluster_has_one_next_step() {
        for (cluster, wanted, next) in [
            ("*a b c#", "c", "reseed c"),
            ("*a b c#", "a2", "reseed c"),
            ("*a b c#", "0xa2", "reseed c"),
            ("a b *c#", "c", "reseed c"),
            ("a b c#", "c", "reseed c"),
            ("*a b c#!", "c", "await"),
            ("*a b ~c#", "c", "reseed c"),
            ("*a ~c#", "c", "reseed c"),
            ("*a b c", "c", "nothing"),
            ("*a b! c d e#", "e", "reseed e"),
            ("*a b c# d#", "c", "reseed c"),
            ("*a# b c#", "c", "await a leader other than a0"),
        ] {
            assert_eq!(step(cluster, wanted), next, "{cluster}: {wanted}");
        }
    }

    #[test]
    fn what_would_lose_the_quorum_or_copy_a_wrong_state_is_refused() {
        for (cluster, wanted, refusal) in [
            ("*a b c#", "d", "d is not a member of the cluster"),
            ("*a c# c#", "c", "c is the name of 2 members"),
            ("*a b 0#", "b", "the alarm CORRUPT names no member"),
            ("*a b! c#", "c", "without c, 1/3 voters are up, which is not a quorum"),
            ("*a c#", "c", "without c, 1/2 voters are up, which is not a quorum"),
            ("*a#", "a", "without a, 0/1 voters are up, which is not a quorum"),
            ("*a b! c! d e#", "e", "without e, 2/5 voters are up, which is not a quorum"),
        ] {
            let refused = step(cluster, wanted);
            assert!(refused.starts_with(refusal), "{cluster}: {wanted}: {refused}");
        }
    }
}
