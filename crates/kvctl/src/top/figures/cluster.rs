//! Combined documents of all endpoints.
//!
//! Rates and names of a cluster are sums over the responding members: each counts the requests it served.

use std::collections::{BTreeMap, BTreeSet};

use super::endpoint::{Calls, Endpoint, Pick};
use super::fetch::Absence;
use telemetry::status::{Document, Severity};
use telemetry::usage::Top;

/// Scope of a table of sums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    #[default]
    All,
    /// The one at this position.
    One(usize),
}

/// Name list of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamedMember {
    Clients,
    Prefixes,
}

#[derive(Clone, Debug, Default)]
pub struct ClusterFigures {
    pub endpoints: Vec<Endpoint>,
}

/// A member that its peers list, but without a given endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnaskedMember {
    pub id: String,
    pub name: String,
    pub role: &'static str,
    /// Lag in entries, by the leader, or else by the first member that reports it.
    pub lag: Option<u64>,
    /// Number of responding members with a connection to it.
    pub linked: usize,
    pub asked: usize,
}

/// The largest names, or why there are none.
#[derive(Clone, Debug, PartialEq)]
pub enum TopNames {
    /// No member counts them.
    NotCounted,
    Rows(Vec<Top>),
}

/// One line about the whole cluster, and whether it needs attention.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Headline {
    pub text: String,
    pub is_well: bool,
}

impl ClusterFigures {
    pub fn new(addresses: impl Iterator<Item = String>) -> ClusterFigures {
        ClusterFigures { endpoints: addresses.map(Endpoint::new).collect() }
    }

    /// Returns the responding endpoints, one per member: two addresses of a member count once.
    fn scoped(&self, scope: Scope) -> impl Iterator<Item = &Endpoint> {
        let mut seen = BTreeSet::new();
        let mut is_in = move |at: usize, document: &Document| match scope {
            Scope::All => seen.insert(document.id.clone()),
            Scope::One(only) => at == only,
        };
        let live = self.endpoints.iter().enumerate().filter_map(|(at, it)| Some((at, it, it.live()?)));
        live.filter(move |(at, _, document)| is_in(*at, document)).map(|(_, endpoint, _)| endpoint)
    }

    fn live(&self) -> impl Iterator<Item = &Document> {
        self.endpoints.iter().filter_map(Endpoint::live)
    }

    /// Names of a member by its id, as far as they are known.
    pub fn name_of(&self, id: &str) -> String {
        let mut known = self.endpoints.iter().filter_map(Endpoint::last).flat_map(|it| &it.members);
        known
            .find(|member| member.id == id && !member.name.is_empty())
            .map_or_else(|| id.to_owned(), |member| member.name.clone())
    }

    /// How an endpoint is called: as its member, once that is known.
    pub fn name_at(&self, at: usize) -> String {
        let Some(endpoint) = self.endpoints.get(at) else { return String::new() };
        match endpoint.last() {
            Some(document) if !document.name.is_empty() => document.name.clone(),
            Some(document) => self.name_of(&document.id),
            None => endpoint.address.clone(),
        }
    }

    /// The sum of a rate. None while no endpoint has one.
    pub fn rate(&self, scope: Scope, pick: Pick) -> Option<f64> {
        self.scoped(scope).filter_map(|endpoint| endpoint.rate(pick)).reduce(|a, b| a + b)
    }

    /// Returns the calls by method. None until an endpoint has responded twice.
    pub fn calls(&self, scope: Scope) -> Option<BTreeMap<&str, Calls>> {
        let mut each = self.scoped(scope).filter_map(Endpoint::calls);
        let mut all = each.next()?;
        for calls in each {
            for (method, calls) in calls {
                all.entry(method).or_default().add(&calls);
            }
        }
        Some(all)
    }

    pub fn top(&self, scope: Scope, named: NamedMember) -> TopNames {
        let mut sums: BTreeMap<&str, Top> = BTreeMap::new();
        let mut is_counted = false;
        for rows in self.scoped(scope).filter_map(Endpoint::live).filter_map(|it| it.top.as_ref()) {
            is_counted = true;
            let rows = match named {
                NamedMember::Clients => &rows.clients,
                NamedMember::Prefixes => &rows.prefixes,
            };
            for row in rows {
                let new = || Top { name: row.name.clone(), requests: 0.0, bytes: 0.0, keys: 0.0 };
                let sum = sums.entry(&row.name).or_insert_with(new);
                sum.requests += row.requests;
                sum.bytes += row.bytes;
                sum.keys += row.keys;
            }
        }
        if is_counted { TopNames::Rows(sums.into_values().collect()) } else { TopNames::NotCounted }
    }

    /// Returns the members without an endpoint, as described by their peers.
    pub fn unasked(&self) -> Vec<UnaskedMember> {
        let asked: BTreeSet<&str> =
            self.endpoints.iter().filter_map(Endpoint::last).map(|it| it.id.as_str()).collect();
        let mut found: BTreeMap<&str, UnaskedMember> = BTreeMap::new();
        for document in self.live() {
            for member in document.members.iter().filter(|member| !asked.contains(member.id.as_str())) {
                let role = match (member.is_leader, member.is_learner) {
                    (true, _) => "leader",
                    (false, true) => "learner",
                    (false, false) => "voter",
                };
                let new = || UnaskedMember {
                    id: member.id.clone(),
                    name: self.name_of(&member.id),
                    role,
                    lag: None,
                    linked: 0,
                    asked: 0,
                };
                let entry = found.entry(&member.id).or_insert_with(new);
                entry.lag = entry.lag.or(member.lag);
                entry.asked += 1;
                entry.linked += usize::from(member.linked_s.is_some());
            }
        }
        found.into_values().collect()
    }

    /// Returns a member's lag in entries by its leader's count, or else its committed entries not
    /// yet applied.
    pub fn lag_of(&self, document: &Document) -> Option<u64> {
        let by_leader = self
            .live()
            .filter(|other| other.id != document.id && other.role == "leader")
            .flat_map(|leader| &leader.members)
            .find(|member| member.id == document.id)
            .and_then(|member| member.lag);
        by_leader.or_else(|| document.members.iter().find(|member| member.is_self).and_then(|it| it.lag))
    }

    /// The largest of a figure that all members share, such as the number of keys.
    pub fn largest(&self, pick: Pick) -> Option<f64> {
        self.live().map(pick).reduce(f64::max)
    }

    /// The sum of a figure that each member has for itself, such as its watchers.
    pub fn sum(&self, pick: Pick) -> Option<f64> {
        self.scoped(Scope::All).filter_map(Endpoint::live).map(pick).reduce(|a, b| a + b)
    }

    /// Returns the number of endpoints with a server that does not serve documents.
    pub fn without_figures(&self) -> usize {
        let absences = self.endpoints.iter().filter_map(Endpoint::absence);
        absences.filter(|absence| matches!(absence, Absence::NoFigures(_))).count()
    }

    /// Returns the worst health that members report, or else the leader; the term; and the number of
    /// responding endpoints.
    pub fn headline(&self) -> Headline {
        let live: Vec<&Document> = self.live().collect();
        let (without, all) = (self.without_figures(), self.endpoints.len());
        let answering = live.len() + without;
        let asked = self.endpoints.iter().filter(|endpoint| endpoint.is_asked()).count();
        if live.is_empty() {
            let text = match (asked < all, without) {
                (true, _) => "polling",
                (false, 0) => "NO ENDPOINT UP",
                (false, _) => "NO STATISTICS: use the URLs of --listen-metrics-urls",
            };
            return Headline { text: text.to_owned(), is_well: asked < all };
        }
        let newest = live.iter().map(|document| document.raft.term).max().unwrap_or_default();
        let leaders: BTreeSet<&str> =
            live.iter().filter(|it| it.raft.term == newest).map(|it| it.leader.as_str()).collect();
        let named: Vec<String> =
            leaders.iter().filter(|id| !id.is_empty()).map(|id| self.name_of(id)).collect();
        let leader = match named.len() {
            0 => "NO LEADER".to_owned(),
            1 => format!("leader {}", named[0]),
            _ => format!("LEADERS DIFFER: {}", named.join(", ")),
        };
        let clusters: BTreeSet<&str> = live.iter().map(|document| document.cluster.as_str()).collect();
        let cluster = match clusters.len() {
            1 => format!("cluster {}", live[0].cluster),
            several => format!("ENDPOINTS OF {several} CLUSTERS"),
        };
        let answer = if answering == all {
            format!("{all}/{all} endpoints up")
        } else {
            format!("{answering}/{all} ENDPOINTS UP")
        };
        let answer = match without {
            0 => answer,
            without => format!("{answer}, {without} WITHOUT STATISTICS"),
        };
        let health = live.iter().map(|document| &document.health).max_by_key(|health| health.severity);
        let health = health.filter(|health| !health.text.is_empty() && named.len() < 2);
        let is_well = named.len() == 1 && clusters.len() == 1 && live.len() == all;
        let is_well = is_well && health.is_none_or(|health| health.severity == Severity::Good);
        let leader = health.map_or(leader, |health| health.text.clone());
        Headline { text: format!("{leader} · term {newest} · {answer} · {cluster}"), is_well }
    }

    /// The alarms that any member reports.
    pub fn alarms(&self) -> Headline {
        let raised: BTreeSet<(&str, &str)> = self
            .live()
            .flat_map(|document| &document.alarms)
            .map(|it| (it.alarm.as_str(), it.member.as_str()))
            .collect();
        if raised.is_empty() {
            let is_known = self.live().next().is_some();
            let text = if is_known { "no alarms" } else { "alarms unknown" };
            return Headline { text: text.to_owned(), is_well: is_known };
        }
        let texts: Vec<String> = raised
            .iter()
            .map(|(alarm, member)| format!("ALARM {alarm} of {}", self.name_of(member)))
            .collect();
        Headline { text: texts.join(" · "), is_well: false }
    }
}
