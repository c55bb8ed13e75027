set -euo pipefail
false | true
echo never
