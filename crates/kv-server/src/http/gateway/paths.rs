//! The path of each method. etcd has some methods under two, and everything under `/v3beta/` as well.

use std::collections::HashMap;
use std::sync::OnceLock;

use api::Method;

use crate::methods;

/// Returns the method for a path such as `/v3/kv/put`.
pub(super) fn method(path: &str) -> Option<Method> {
    static METHODS: OnceLock<HashMap<&str, Method>> = OnceLock::new();
    let methods = METHODS.get_or_init(|| {
        Method::ALL
            .iter()
            .flat_map(|method| methods::of(*method).paths.iter().map(|path| (*path, *method)))
            .collect()
    });
    let rest = path.strip_prefix("/v3/").or_else(|| path.strip_prefix("/v3beta/"))?;
    methods.get(rest).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_one_method_under_both_prefixes() {
        for (path, wanted) in [
            ("/v3/kv/put", Some(Method::KvPut)),
            ("/v3beta/kv/put", Some(Method::KvPut)),
            ("/v3/kv/lease/leases", Some(Method::LeaseLeases)),
            ("/v3/watch", Some(Method::Watch)),
            ("/v3/kv/put/", None),
            ("/v3/", None),
            ("/v3alpha/kv/put", None),
            ("/kv/put", None),
        ] {
            assert_eq!(method(path), wanted, "{path}");
        }
        let all: Vec<&str> =
            Method::ALL.iter().flat_map(|method| methods::of(*method).paths).copied().collect();
        let distinct: std::collections::HashSet<&str> = all.iter().copied().collect();
        assert_eq!((all.len(), distinct.len()), (51, 51));
    }
}
