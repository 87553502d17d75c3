//! Raises the cluster's command level, on the leader, when all members have announced a higher level.
//!
//! * An unreachable member prevents the raise: it may return with an older version.
//! * Announcements are verified by a query before the raise, for the same reason.
//! * A member that has not applied the level for a long time has skipped the raise, as older versions do. The
//!   raise is then proposed again.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use api::etcdserverpb::Member as MemberEntry;
use state_machine::command::{self, Kind};
use state_machine::level::{self, RaiseInquiry};
use state_machine::{CommandLevel, Lineage};
use tokio::time::{Instant, sleep};

use super::handle::{Member, ProposeError};
use super::roster::{AnnouncedMembers, Reach};
use process::log::causes;
use process::shutdown::Stop;

/// Interval between two checks. Members announce their level on each connect, and every five seconds.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Interval when the level is the highest that this member supports.
const CHECK_INTERVAL_AT_HIGHEST: Duration = Duration::from_secs(5);
/// Lag after which the raise is proposed again. If the member was merely slow, the second raise has no
/// effect.
const RETRY_DELAY: Duration = Duration::from_secs(15);

/// Runs until `stop`.
pub(crate) fn start(member: &Arc<Member>, stop: &Stop) {
    let (member, stop) = (Arc::clone(member), stop.clone());
    tokio::spawn(async move {
        tokio::select! {
            never = look_at_intervals(&member) => match never {},
            () = stop.stopped() => {}
        }
    });
}

async fn look_at_intervals(member: &Member) -> Infallible {
    let mut lagging_since = None;
    let mut leader = member.raft.leader_known();
    loop {
        // The level cannot exceed the one supported here; then only lagging members are of interest.
        let is_highest = member.level.get() >= CommandLevel::OWN && lagging_since.is_none();
        sleep(if is_highest { CHECK_INTERVAL_AT_HIGHEST } else { CHECK_INTERVAL }).await;
        if member.status().leader != Some(member.ids.member) {
            lagging_since = None;
            let leads = |leader: &Option<u64>| *leader == Some(member.ids.member);
            if leader.wait_for(leads).await.is_err() {
                std::future::pending::<()>().await; // The member stops.
            }
        }
        // On an error here, apply fails as well and stops the member.
        let Ok(members) = member.members() else { continue };
        let Ok(lineage) = Lineage::of(&member.store) else { continue };
        let look = RaiseCheck {
            own: member.ids.member,
            cluster: member.level.get(),
            members,
            reach: &*member.reach,
            history: lineage.id,
        };
        let Some(raise) = look.next(&mut lagging_since).await else { continue };
        match member.propose_for_member(command::encode(raise)).await {
            Ok(()) => tracing::info!(
                to = member.level.get().0,
                history = %Lineage::of(&member.store).unwrap_or_default(),
                "cluster command version upgraded"
            ),
            // A member was added in the meantime.
            Err(ProposeError::Refused(_)) => {}
            Err(error) => tracing::debug!(error = causes(&error), "cluster command version was not upgraded"),
        }
    }
}

/// Inputs of a check on the leader.
struct RaiseCheck<'a> {
    own: u64,
    cluster: CommandLevel,
    members: Vec<MemberEntry>,
    reach: &'a dyn Reach,
    /// Id of the history; 0 if it has none.
    history: u64,
}

impl RaiseCheck<'_> {
    async fn next(&self, lagging_since: &mut Option<Instant>) -> Option<Kind> {
        let RaiseCheck { cluster, members, history, .. } = self;
        let announced = |id| self.announced(id).map(|levels| levels.known);
        let new = if *history == 0 { rand::random() } else { 0 };
        if let Some(mut inquiry) = RaiseInquiry::begin(self.own, *cluster, members.clone(), announced, new) {
            for id in inquiry.unasked().collect::<Vec<_>>() {
                inquiry.note(id, self.reach.ask_levels(id).await?.known);
            }
            return inquiry.raise();
        }
        let lags = |levels: AnnouncedMembers| levels.cluster < *cluster;
        let lagging = members.iter().find(|member| self.announced(member.id).is_some_and(lags));
        let Some(lagging) = lagging else {
            *lagging_since = None;
            return None;
        };
        if lagging_since.get_or_insert_with(Instant::now).elapsed() < RETRY_DELAY {
            return None;
        }
        *lagging_since = None;
        let still = self.reach.ask_levels(lagging.id).await.is_some_and(lags);
        still.then(|| level::raise_to(*cluster, members, *history))
    }

    fn announced(&self, id: u64) -> Option<AnnouncedMembers> {
        if id == self.own { Some(self.own_levels()) } else { self.reach.announced(id) }
    }

    fn own_levels(&self) -> AnnouncedMembers {
        AnnouncedMembers { known: CommandLevel::OWN, cluster: self.cluster }
    }
}

#[cfg(test)]
mod tests {
    use mvcc::{LogIndex, RecountSpan};

    use super::super::roster::{
        AskedDigest, AskedFigures, AskedHash, AskedLevels, AskedRecount, Figures, FiguresSource,
        ProgressAnswer,
    };
    use super::*;

    /// Levels that members 2 and 3 announced, and those they return to a query.
    struct Others([[Option<u32>; 2]; 2], CommandLevel);

    impl Others {
        fn levels(&self, member: u64, at: usize) -> Option<AnnouncedMembers> {
            let known = CommandLevel(self.0[member as usize - 2][at]?);
            Some(AnnouncedMembers { known, cluster: self.1 })
        }
    }

    impl Reach for Others {
        fn active_since(&self, _: u64) -> Option<std::time::Instant> {
            unreachable!("a look asks for levels")
        }

        fn announced(&self, member: u64) -> Option<AnnouncedMembers> {
            self.levels(member, 0)
        }

        fn ask_levels(&self, member: u64) -> AskedLevels<'_> {
            Box::pin(async move { self.levels(member, 1) })
        }

        fn ask_progress(&self, _: u64, _: u64) -> ProgressAnswer<'_> {
            unreachable!("a look asks for levels")
        }

        fn ask_digest(&self, _: u64, _: LogIndex, _: LogIndex) -> AskedDigest<'_> {
            unreachable!("a look asks for levels")
        }

        fn ask_recount(&self, _: u64, _: RecountSpan) -> AskedRecount<'_> {
            unreachable!("a look asks for levels")
        }

        fn ask_hash(&self, _: u64, _: i64) -> AskedHash<'_> {
            unreachable!("a look asks for levels")
        }

        fn ask_figures(&self, _: u64, _: Figures) -> AskedFigures<'_> {
            unreachable!("a look asks for levels")
        }

        fn serve_figures(&self, _: FiguresSource) {}
    }

    fn look(cluster: CommandLevel, reach: &Others) -> RaiseCheck<'_> {
        let members = [1, 2, 3].map(|id| MemberEntry { id, ..MemberEntry::default() }).to_vec();
        RaiseCheck { own: 1, cluster, members, reach, history: 9 }
    }

    #[tokio::test]
    async fn a_level_is_raised_by_what_all_members_answer_now() {
        let new = Some(CommandLevel::OWN.0);
        for (third, is_raised) in [
            ([new, new], true),
            ([Some(0), new], false),
            ([None, new], false),
            // The third member returned with an older version, or is restarting.
            ([new, Some(0)], false),
            ([new, None], false),
        ] {
            let others = Others([[new, new], third], CommandLevel(0));
            let raise = look(CommandLevel(0), &others).next(&mut None).await;
            assert_eq!(raise.is_some(), is_raised, "{third:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_raise_that_a_member_missed_is_proposed_again() {
        let (own, mut since) = (CommandLevel::OWN, None);
        let known = Some(own.0);
        for (cluster, is_proposed) in [(own, false), (CommandLevel(0), true)] {
            let others = Others([[known, known]; 2], cluster);
            let look = look(own, &others);
            assert_eq!(look.next(&mut since).await, None, "it may be about to apply it");
            tokio::time::advance(RETRY_DELAY).await;
            let again = look.next(&mut since).await;
            assert_eq!(again, is_proposed.then(|| level::raise_to(own, &look.members, 9)));
            assert_eq!(look.next(&mut since).await, None, "it has time again");
        }
    }
}
