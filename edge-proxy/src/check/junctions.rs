//! Fitness of junctions: whether those who may use an export may also use what is shown in it. Whether their directories are there is said by
//! `status` of the running edge.

use super::Subject;
use crate::{finding::Finding, junctions, nfs};
use firn_nfs::{Export, Exports, HandleKey, Junction, Place};

const SUBJECT: &str = "junction";

pub fn look(subject: &Subject<'_>) -> Vec<Finding> {
    let exports = nfs::exports(subject.edge, None).ok().and_then(|exports| {
        let exports = Exports::new(HandleKey::new(&[0; 32]), exports).ok()?;
        junctions::add(exports, subject.edge).ok()
    });
    // The file was checked before.
    let exports = exports.iter().flat_map(Exports::junctions);
    exports.map(of_junction).collect()
}

fn of_junction(junction: &Junction) -> Finding {
    let (export, target) = (junction.export(), junction.target());
    let path = Place::below(export.path(), &junction.place().to_string());
    let left_out = left_out(export, target);
    if left_out.is_empty() {
        return Finding::fine(SUBJECT, format!("{path} shows {}", target.path()));
    }
    Finding::hurts(
        SUBJECT,
        format!(
            "{path} shows {}, which {} may not use: clients get \"Permission denied\" there",
            target.path(),
            left_out.join(", ")
        ),
        format!(
            "name them in clients or read_only_clients of {}, unless they are to be kept out",
            target.path()
        ),
    )
}

/// Networks that may use one export, and not, or not all of them, the other.
fn left_out(export: &Export, target: &Export) -> Vec<String> {
    let rules = export.rules().iter().map(|rule| rule.network);
    let is_left_out = |network: &firn_nfs::ClientNetwork| {
        let mut admitted = target.rules().iter();
        !admitted.any(|rule| rule.network.includes(network))
    };
    rules
        .filter(is_left_out)
        .map(|network| network.to_string())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Verdict;
    use firn_nfs::ClientRule;

    #[test]
    fn networks_that_are_kept_out_of_what_is_shown_are_named() {
        let found = |shown: &[&str]| {
            let export = |path: &str, networks: &[&str]| {
                let rules = networks
                    .iter()
                    .map(|network| ClientRule::read_write(network.parse().expect("a network")));
                Export::away(path, rules.collect()).expect("an export")
            };
            let exports = [
                export("/files", &["10.0.0.0/8", "fd00::/8"]),
                export("/projects", shown),
            ];
            let exports = Exports::new(HandleKey::new(&[0; 32]), exports).expect("exports");
            let exports = exports
                .with_junction("/files", "/dept/projects", "/projects")
                .expect("a junction");
            of_junction(&exports.junctions()[0])
        };
        for all in [&["*"][..], &["10.0.0.0/8", "fd00::/8"], &["0.0.0.0/0", "::/0"]] {
            let fine = found(all);
            assert_eq!(
                (fine.verdict, &*fine.said),
                (Verdict::Fine, "/files/dept/projects shows /projects")
            );
        }
        let part = found(&["10.0.0.0/9", "fd00::/8"]);
        assert_eq!(part.verdict, Verdict::WillHurt);
        assert!(part.said.contains("which 10.0.0.0/8 may not use"), "{part}");
    }
}
