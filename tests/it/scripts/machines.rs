//! What the tests and checks install and find on machines of other kinds.

use super::prints;
use crate::quickstart::functions_of;

/// A machine whose user may install packages, one whose mirror lacks them, and one whose user may not.
const CHART: &str = r#"
mv functions.sh scripts && . scripts/functions.sh
touch here
has() { [ "$1" = apt-get ] || grep -q golang-go here; }
package_is_here() { grep -q "$1" here; }
go() { echo go "$1"; }
may_be_root() { return 0; }
install_packages() { echo "installs $*" | tee here; }
(prepare)
: >here
install_packages() { exit 1; }
(prepare) || echo "status $?"
may_be_root() { return 1; }
install_packages() { echo installs "$@"; }
(prepare) || echo "status $?"
"#;

#[test]
fn the_chart_is_rendered_wherever_its_packages_can_be_installed() {
    let wanted = "installs golang-go golang-github-masterminds-sprig-dev golang-k8s-sigs-yaml-dev \
                  golang-github-xeipuuv-gojsonschema-dev\ngo build\nstatus 77\nstatus 77\n";
    let err = prints(&functions_of("scripts/chart.sh"), CHART, wanted);
    assert!(err.contains("needs Debian's packages golang-go"), "{err}");
}
