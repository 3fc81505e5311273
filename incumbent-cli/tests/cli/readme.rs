//! What the README shows is what the command prints.

use crate::harness::World;

#[test]
fn the_readme_s_table_is_made_from_the_registry() {
    let readme = include_str!("../../../README.md");
    let (_, after) = readme.split_once("<!-- made by: incumbent backends --markdown -->\n").expect("a table");
    let (table, _) = after.split_once("<!-- end -->").expect("its end");
    let (code, out, err) = World::new().output(&["backends", "--markdown"]);
    assert_eq!((code, err.as_str()), (0, ""));
    assert_eq!(table, out, "paste what `incumbent backends --markdown` prints into the README");
}
