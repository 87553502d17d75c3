//! The processes of a cluster with membership changes, by place.
//!
//! * Every place has a port for clients and two for peers; a moved member switches between them.
//!   Other members dial a port of the links, which relay to it.
//! * Every member has a new name and a new directory.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use testkit::Process;
use testkit::process::ProcessEnd;

use super::links::{Links, Way};
use super::operator;
use super::plan::{At, FIRST, PLACES};
use crate::bench::{Environment, ScratchDir};
use crate::failure::{Attempt, ExperimentError, Result};
use crate::member::{self, MemberPlace, PATIENCE};

/// Small logs, so that returning members need a snapshot. etcd's health check before a change would
/// reject changes that the plan permits.
const FLAGS: [&str; 3] =
    ["--snapshot-count=300", "--snapshot-catchup-entries=20", "--strict-reconfig-check=false"];
/// Flag of a member that joins a running cluster.
pub const EXISTING: &str = "--initial-cluster-state=existing";
/// Log message of a removed member when it exits.
const REMOVED: &str = "the member has been permanently removed from the cluster";
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Time that a removed member without reachable peers is observed: long enough for its elections.
const ALONE_FOR: Duration = Duration::from_millis(1_500);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberCondition {
    Up,
    Paused,
    /// Running, without connections to other members.
    CutOff,
    Down,
}

/// A member of the current configuration, and its process.
pub struct LiveMember {
    pub place: MemberPlace,
    pub id: u64,
    pub is_learner: bool,
    pub process: Option<Process>,
    pub state: MemberCondition,
}

impl LiveMember {
    pub fn is_voter_up(&self) -> bool {
        self.state == MemberCondition::Up && !self.is_learner
    }
}

struct RemovedMember {
    place: MemberPlace,
    /// Peers in its last configuration, as (id, URL). Empty if it was away and may have missed changes.
    knew: Vec<(u64, String)>,
}

pub struct LiveCluster {
    pub bench: Environment,
    pub scratch: ScratchDir,
    pub links: Links,
    pub members: BTreeMap<At, LiveMember>,
    gone: BTreeMap<At, RemovedMember>,
    births: u64,
}

pub fn url(place: &MemberPlace) -> String {
    format!("http://127.0.0.1:{}", place.advertised_peer_port)
}

/// Returns the ports of a place: for clients, and for peers on one of its two sides.
fn ports(bench: &Environment, at: At, side: u16) -> (u16, Way) {
    let places = u16::try_from(PLACES).expect("there are few places");
    let slot = 2 * u16::try_from(at).expect("there are few places");
    let (client_port, _) = bench.ports(slot);
    let (_, peer_port) = bench.ports(slot + side);
    let (_, dialled_port) = bench.ports(2 * places + slot + side);
    (client_port, Way { at, dialled_port, peer_port })
}

impl LiveCluster {
    /// Starts the initial members and waits until they are ready.
    pub async fn start(bench: &Environment) -> Result<LiveCluster> {
        let scratch = bench.directory("members")?;
        let ways: Vec<Way> = (0..PLACES).flat_map(|at| [0, 1].map(|side| ports(bench, at, side).1)).collect();
        let links = Links::open(&ways).await?;
        let (members, gone) = (BTreeMap::new(), BTreeMap::new());
        let mut cluster = LiveCluster { bench: bench.clone(), scratch, links, members, gone, births: 0 };
        let mut places: Vec<MemberPlace> = (0..FIRST).map(|at| cluster.place(at, None)).collect();
        let all: Vec<String> = places.iter().map(|place| format!("{}={}", place.name, url(place))).collect();
        for (at, place) in places.iter_mut().enumerate() {
            place.cluster = all.join(",");
            place.flags.retain(|flag| flag != EXISTING);
            let place = place.clone();
            let member =
                LiveMember { place, id: 0, is_learner: false, process: None, state: MemberCondition::Down };
            cluster.members.insert(at, member);
            cluster.launch(at)?;
        }
        for at in 0..FIRST {
            cluster.wait_ready(at)?;
            cluster.find_id(at).await?;
        }
        Ok(cluster)
    }

    /// Returns the place of a new member that joins the current ones. Its list omits the member at
    /// `without`.
    pub fn place(&mut self, at: At, without: Option<At>) -> MemberPlace {
        let (client_port, way) = ports(&self.bench, at, 0);
        let name = format!("m{}", self.births);
        self.births += 1;
        let others = self.members.iter().filter(|(at, _)| Some(**at) != without);
        let known = others.map(|(_, member)| format!("{}={}", member.place.name, url(&member.place)));
        let directory = self.scratch.join(&name);
        let alone = MemberPlace::alone(&self.bench.server, directory, (client_port, way.peer_port));
        let mut place = MemberPlace { name, advertised_peer_port: way.dialled_port, ..alone };
        let own = format!("{}={}", place.name, url(&place));
        place.cluster = known.chain([own]).collect::<Vec<_>>().join(",");
        place.flags = FLAGS.map(str::to_owned).to_vec();
        place.flags.push(EXISTING.to_owned());
        place
    }

    /// Returns the client ports of all places, used or not.
    pub fn client_ports(&self) -> Vec<u16> {
        (0..PLACES).map(|at| ports(&self.bench, at, 0).0).collect()
    }

    /// Returns the client ports of the running voters.
    pub fn voters_up(&self) -> Vec<u16> {
        let up = self.members.values().filter(|member| member.is_voter_up());
        up.map(|member| member.place.client_port).collect()
    }

    pub fn member(&self, at: At) -> Result<&LiveMember> {
        self.members.get(&at).ok_or_else(|| ExperimentError::new(format!("place {at} has no member")))
    }

    pub fn member_mut(&mut self, at: At) -> Result<&mut LiveMember> {
        self.members.get_mut(&at).ok_or_else(|| ExperimentError::new(format!("place {at} has no member")))
    }

    pub fn wait_ready(&self, at: At) -> Result<()> {
        let LiveMember { place, process, .. } = self.member(at)?;
        let process =
            process.as_ref().ok_or_else(|| ExperimentError::new(format!("{} does not run", place.name)))?;
        let ready = tokio::task::block_in_place(|| member::wait_ready(process));
        ready.map_err(|failure| ExperimentError::new(format!("start of {}: {failure}", place.name)))
    }

    /// Starts the member in place `at`.
    pub fn launch(&mut self, at: At) -> Result<()> {
        let process = self.member(at)?.place.start(&[])?;
        self.links.name(at, process.pid());
        let member = self.member_mut(at)?;
        (member.process, member.state) = (Some(process), MemberCondition::Up);
        Ok(())
    }

    /// Reverts a fault: restarts, resumes or reconnects the member.
    pub fn bring_back(&mut self, at: At) -> Result<()> {
        match self.member(at)?.state {
            MemberCondition::Up => return Ok(()),
            MemberCondition::Paused => self.member(at)?.process.iter().for_each(Process::resume),
            MemberCondition::CutOff => self.links.mend(at),
            MemberCondition::Down => self.launch(at)?,
        }
        self.member_mut(at)?.state = MemberCondition::Up;
        self.wait_ready(at)
    }

    /// Kills the member and waits for its exit.
    pub fn kill(&mut self, at: At) -> Result<()> {
        let name = self.member(at)?.place.name.clone();
        match self.end(at)? {
            Some(ProcessEnd { status, said }) if status.code().is_some() => {
                Err(ExperimentError::new(format!("{name} ended, {status}: {said}")))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Kills a member that was just removed. It may have exited before.
    pub fn kill_removed(&mut self, at: At) -> Result<()> {
        let name = self.member(at)?.place.name.clone();
        match self.end(at)? {
            Some(ProcessEnd { status, said }) if status.code().is_some() && !said.contains(REMOVED) => {
                Err(ExperimentError::new(format!("{name} was removed and ended, {status}: {said}")))
            }
            Some(_) | None => Ok(()),
        }
    }

    fn end(&mut self, at: At) -> Result<Option<ProcessEnd>> {
        let member = self.member_mut(at)?;
        member.state = MemberCondition::Down;
        let process = member.process.take();
        process.map(|process| tokio::task::block_in_place(|| member::kill(process))).transpose()
    }

    /// Records an added member.
    pub async fn adopt(&mut self, at: At, place: MemberPlace, is_learner: bool) -> Result<()> {
        if let Some(gone) = self.gone.remove(&at) {
            // Its ports are in use again, so it cannot return.
            let _litter = std::fs::remove_dir_all(&gone.place.data_dir);
        }
        self.members
            .insert(at, LiveMember { place, id: 0, is_learner, process: None, state: MemberCondition::Down });
        self.find_id(at).await
    }

    /// Looks up the id of the member at `at` by its URL.
    async fn find_id(&mut self, at: At) -> Result<()> {
        let (wanted, deadline) = (url(&self.member(at)?.place), Instant::now() + PATIENCE);
        loop {
            for port in self.voters_up() {
                let Ok(list) = operator::list(port).await else { continue };
                let found = list.iter().find(|entry| entry.peer_ur_ls.contains(&wanted));
                if let Some(entry) = found {
                    self.member_mut(at)?.id = entry.id;
                    return Ok(());
                }
            }
            if Instant::now() > deadline {
                return Err(ExperimentError::new(format!("no list has a member with {wanted}")));
            }
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    }

    /// Returns the expected membership: id, peer URL, learner or voter.
    fn expected(&self) -> Vec<(u64, Vec<String>, bool)> {
        let entry = |member: &LiveMember| (member.id, vec![url(&member.place)], member.is_learner);
        let mut list: Vec<_> = self.members.values().map(entry).collect();
        list.sort_unstable();
        list
    }

    /// Waits until all running voters have the expected membership.
    pub async fn settle(&self) -> Result<()> {
        let (expected, deadline) = (self.expected(), Instant::now() + PATIENCE);
        for (at, member) in &self.members {
            if !member.is_voter_up() {
                continue;
            }
            loop {
                let list = operator::list(member.place.client_port).await.map(|entries| {
                    let entries = entries.into_iter();
                    let mut list: Vec<_> =
                        entries.map(|entry| (entry.id, entry.peer_ur_ls, entry.is_learner)).collect();
                    list.sort_unstable();
                    list
                });
                if list.as_ref().is_ok_and(|list| *list == expected) {
                    break;
                }
                if Instant::now() > deadline {
                    let name = &member.place.name;
                    return Err(ExperimentError::new(format!(
                        "{name} in place {at} has {list:x?}, expected {expected:x?}"
                    )));
                }
                tokio::time::sleep(CHECK_INTERVAL).await;
            }
        }
        Ok(())
    }

    /// Fails if a member exited without being killed.
    pub fn ended(&mut self) -> Result<()> {
        for member in self.members.values_mut().filter(|member| member.state != MemberCondition::Down) {
            if let Some(end) = member.process.as_mut().and_then(Process::end) {
                let name = &member.place.name;
                return Err(ExperimentError::new(format!(
                    "{name} ended by itself, {}: {}",
                    end.status, end.said
                )));
            }
        }
        Ok(())
    }

    /// Drops a removed member from the record. If it runs, it must exit by itself.
    pub fn drop_removed(&mut self, at: At) -> Result<()> {
        let Some(mut member) = self.members.remove(&at) else { return Ok(()) };
        self.links.mend(at);
        let known = self.members.values().filter(|other| !other.is_learner);
        let mut knew: Vec<_> = known.map(|other| (other.id, url(&other.place))).collect();
        match member.state {
            MemberCondition::Up => {
                let process = member.process.take();
                process.map(|process| removed_end(&member.place.name, process)).transpose()?;
            }
            // It may have missed any number of changes.
            MemberCondition::Paused | MemberCondition::CutOff | MemberCondition::Down => knew.clear(),
        }
        self.gone.insert(at, RemovedMember { place: member.place, knew });
        Ok(())
    }

    /// Starts the directory of a removed member. It must exit by itself if a voter that it knew is
    /// still a member.
    pub async fn restart_removed(&mut self, at: At) -> Result<()> {
        let Some(RemovedMember { place, knew }) = self.gone.get(&at) else { return Ok(()) };
        let voters = self.members.values().filter(|member| member.is_voter_up());
        let is_known =
            voters.map(|member| (member.id, url(&member.place))).any(|voter| knew.contains(&voter));
        let process = place.start(&[])?;
        if is_known {
            return removed_end(&place.name, process);
        }
        tokio::time::sleep(ALONE_FOR).await;
        tokio::task::block_in_place(|| member::kill(process)).map(drop)
    }

    /// Starts a directory that was never added. It must be rejected.
    pub fn start_stranger(&mut self, at: At) -> Result<()> {
        let place = self.place(at, None);
        let process = place.start(&[])?;
        let end = tokio::task::block_in_place(|| member::wait_end(process))?;
        let _litter = std::fs::remove_dir_all(&place.data_dir);
        match end.status.success() {
            false => Ok(()),
            true => Err(ExperimentError::new(format!(
                "{} was never added and ended well: {}",
                place.name, end.said
            ))),
        }
    }

    /// Returns the other listen and dial ports of a member's place.
    pub fn other_side(&self, at: At) -> Result<Way> {
        let present = self.member(at)?.place.peer_port;
        let [one, other] = [0, 1].map(|side| ports(&self.bench, at, side).1);
        Ok(if one.peer_port == present { other } else { one })
    }

    /// Retains the data and the output of every process.
    pub fn keep(&mut self) -> String {
        for LiveMember { place, process, .. } in self.members.values() {
            if let Some(process) = process {
                let path = self.scratch.join(&format!("{}.log", place.name));
                // A failure to write evidence must not hide the fault.
                let _unwritten = std::fs::write(&path, process.said()).attempt("write", &path);
            }
        }
        self.scratch.keep()
    }
}

fn removed_end(name: &str, process: Process) -> Result<()> {
    let end = tokio::task::block_in_place(|| member::wait_end(process));
    let end = end.map_err(|failure| ExperimentError::new(format!("{name} was removed and {failure}")))?;
    match end.said.contains(REMOVED) {
        true => Ok(()),
        false => {
            Err(ExperimentError::new(format!("{name} was removed and ended, {}: {}", end.status, end.said)))
        }
    }
}
