//! Configurations of one volume and of several, as files say them.

use super::*;

const TWO: &str = r#"
        [edge]
        state_directory = "/var/lib/firn"
        [[volume]]
        name = "projects"
        store = "file:///srv/store"
        table = "redb:/srv/table.redb"
        state_directory = "/var/lib/firn"
        share = 3
        [[volume]]
        name = "homes"
        store = "file:///srv/homes"
        table = "redb:/srv/table.redb"
        [[export]]
        path = "/projects"
        volume = "projects"
        clients = ["192.168.0.0/16"]
        [[export]]
        path = "/homes"
        volume = "homes"
        clients = ["192.168.0.0/16"]
        [[mount]]
        path = "/mnt/homes"
        volume = "homes"
    "#;

#[test]
fn each_volume_has_its_exports_mounts_directory_and_share() {
    let edge = EdgeConfig::parse(TWO).expect("fine");
    assert!(edge.has_names());
    assert_eq!(edge.directory(), Path::new("/var/lib/firn"));
    let [projects, homes] = &edge.volumes[..] else {
        panic!("two volumes");
    };
    assert_eq!(projects.volume.state_directory, Path::new("/var/lib/firn"));
    assert_eq!(
        homes.volume.state_directory,
        Path::new("/var/lib/firn/volumes/homes")
    );
    assert_eq!((projects.exports.len(), projects.mounts.len()), (1, 0));
    assert_eq!(
        (homes.exports[0].path.as_str(), homes.mounts.len()),
        ("/homes", 1)
    );
    let whole = LimitsSection::default().disk_cache.0;
    assert_eq!(
        (projects.limits.disk_cache.0, homes.limits.disk_cache.0),
        (whole / 4 * 3, whole / 4)
    );
    assert_eq!(edge.one(Some("homes")).expect("it is there").volume.name, "homes");
    let error = edge.one(None).expect_err("which").to_string();
    assert!(error.contains("projects, homes"), "{error}");
    let error = edge.one(Some("house")).expect_err("none").to_string();
    assert!(error.contains("no volume house"), "{error}");
}

#[test]
fn what_several_volumes_cannot_have_is_refused_in_the_words_of_the_file() {
    for (from, to, said) in [
        (
            "[edge]\n        state_directory = \"/var/lib/firn\"",
            "",
            "an [edge] section",
        ),
        ("name = \"homes\"", "", "must have a name"),
        (
            "name = \"homes\"",
            "name = \"projects\"",
            "there is no [[volume]] of that name, but projects, projects",
        ),
        (
            "name = \"homes\"",
            "name = \"homes\"\nstate_directory = \"/var/lib/firn\"",
            "projects and homes have one state_directory",
        ),
        ("name = \"homes\"", "name = \"homes\"\nshares = 3", "shares"),
        ("share = 3", "share = 0", "between 1 and 1000"),
        ("share = 3", "share = 999", "journal must be at least 8 MiB"),
        (
            "path = \"/homes\"",
            "path = \"/projects\"",
            "exported twice, of projects and of homes",
        ),
        (
            "path = \"/homes\"",
            "path = \"/projects/homes\"",
            "lie one below the other",
        ),
        (
            "path = \"/homes\"\n        volume = \"homes\"",
            "path = \"/homes\"",
            "must say which volume it is of",
        ),
        (
            "path = \"/homes\"\n        volume = \"homes\"",
            "path = \"/homes\"\nvolume = \"home\"",
            "no [[volume]] of that name",
        ),
        (
            "path = \"/mnt/homes\"\n        volume = \"homes\"",
            "path = \"/mnt/homes\"",
            "[[mount]] /mnt/homes: it must say",
        ),
        (
            "path = \"/mnt/homes\"",
            "path = \"/var/lib/firn/volumes\"",
            "state directory",
        ),
        (
            "path = \"/mnt/homes\"",
            "path = \"/srv\"",
            "would cover the store",
        ),
    ] {
        assert!(TWO.contains(from), "{from}");
        let error = EdgeConfig::parse(&TWO.replacen(from, to, 1)).expect_err(to);
        assert!(error.contains(said), "{to}: {error}");
    }
    let twins = TWO.replace("\"homes\"", "\"projects\"");
    let error = EdgeConfig::parse(&twins).expect_err("twice");
    assert!(error.contains("two are named projects"), "{error}");
    let many = TWO.replace("[[export]]", "[limits]\nuploads = 1\n[[export]]");
    assert!(
        EdgeConfig::parse(&many.replacen("[limits]\nuploads = 1\n", "", 1))
            .expect_err("few")
            .contains("each needs one")
    );
}

#[test]
fn one_volume_needs_no_name_and_one_in_a_list_neither() {
    let one = "[volume]\nstore = \"file:///srv/store\"\ntable = \"redb:/srv/t\"\nstate_directory = \"/var/lib/firn\"\n\
                   [[export]]\npath = \"/export\"\nclients = [\"*\"]\n";
    let edge = EdgeConfig::parse(one).expect("fine");
    assert!(!edge.has_names());
    assert_eq!(edge.one(None).expect("it").volume.name, "main");
    assert!(edge.one(Some("main")).is_ok());
    for (more, said) in [
        (
            "[edge]\nstate_directory = \"/var/lib/firn\"\n",
            "leave [edge] out",
        ),
        (
            "[[mount]]\npath = \"/mnt\"\nvolume = \"other\"\n",
            "there is only main",
        ),
    ] {
        let error = EdgeConfig::parse(&format!("{one}{more}")).expect_err(said);
        assert!(error.contains(said), "{error}");
    }
    let listed = one.replace(
        "[volume]",
        "[edge]\nstate_directory = \"/var/lib/firn\"\n[[volume]]\nname = \"a\"",
    );
    let edge = EdgeConfig::parse(&listed).expect("fine");
    assert!(edge.has_names() && edge.one(None).is_ok());
    assert_eq!(
        edge.volumes[0].limits.journal.0,
        LimitsSection::default().journal.0
    );
}

#[test]
fn a_volume_that_is_only_mounted_needs_no_export_and_leaves_those_of_the_file_out() {
    let mount = || MountSection {
        path: "/mnt/files".into(),
        volume: None,
        read_only: false,
        allow_other: false,
        access_log: false,
        durability: None,
    };
    let edge = EdgeConfig::parse_to_mount(TWO, Some("homes"), mount()).expect("fine");
    let [config] = &edge.volumes[..] else {
        panic!("one volume");
    };
    assert_eq!(config.volume.name, "homes");
    assert!(config.exports.is_empty() && config.smb.is_none() && config.mounts.len() == 1);
    let error = EdgeConfig::parse_to_mount(TWO, None, mount()).expect_err("which?");
    assert!(error.contains("--volume"), "{error}");
    let alone = "[volume]\nstore = \"file:///srv/store\"\ntable = \"redb:/srv/table\"\nstate_directory = \"/var/lib/firn\"";
    let error = EdgeConfig::parse(alone).expect_err("nobody can use it");
    assert!(error.contains("exports nothing"), "{error}");
    assert!(EdgeConfig::parse(&format!("{alone}\n[[mount]]\npath = \"/mnt/files\"")).is_ok());
}

#[test]
fn a_junction_leads_to_another_volume_and_nothing_is_shown_below_itself() {
    let with = |more: &str| EdgeConfig::parse(&format!("{TWO}\n{more}"));
    let export = |path: &str, volume: &str, more: &str| {
        format!("[[export]]\npath = \"{path}\"\nvolume = \"{volume}\"\nclients = [\"*\"]\n{more}\n")
    };
    let junction =
        |path: &str, shows: &str| format!("[[export.junction]]\npath = \"{path}\"\nexport = \"{shows}\"\n");
    // The last export of the file is of homes.
    let edge = with(&junction("/all/projects", "/projects/")).expect("fine");
    assert_eq!(edge.volumes[1].exports[0].junctions[0].path, "/all/projects");
    assert!(with(&export("/b", "homes", &(junction("/x", "/projects")))).is_ok());
    let share = "[export.smb]\nshare = \"b\"\n[smb]\n";
    for (wrong, said) in [
        (junction("/p", "/homes"), "`/homes` would be shown below itself"),
        (junction("/p", "/project"), "/project`, and there is none"),
        (
            junction("p", "/projects"),
            "must be absolute from the root of the export",
        ),
        (
            junction("/p", "/projects") + &junction("/p/q", "/projects"),
            "one below the other",
        ),
        (
            junction("/p", "/projects") + &junction("/q", "/projects"),
            "shown at two places",
        ),
        (junction("/p", "/projects") + "mode = 1", "mode"),
        // Another export of the same volume shows the same tree.
        (
            export("/b", "projects", &junction("/p", "/projects")),
            "the volume projects",
        ),
        // Below the volume that it is shown in: projects, homes, projects.
        (
            junction("/p", "/b")
                + &export("/b", "projects", &junction("/q", "/c"))
                + &export("/c", "homes", ""),
            "the volume homes",
        ),
        (
            export("/b", "homes", &(share.to_owned() + &junction("/p", "/projects"))),
            "SMB serves one volume",
        ),
    ] {
        let error = with(&wrong).expect_err(&wrong);
        assert!(error.contains(said), "{wrong}: {error}");
    }
}
