# shellcheck shell=bash
# Formats and checks a Bash program by shfmt and bash -n, and prints one JSON object. Standard input has the name of the
# program's file, a line feed, and the program, which is read and never executed.
set -euo pipefail

# Prints what is wrong at a line and a column; without a column, on the whole line. shfmt counts columns in bytes.
problem() {
  local text before line=$1 column=$2
  text=$(sed -n "${line}p" "$name")
  if [ -n "$column" ]; then
    before=$(LC_ALL=C; printf %s "${text:0:column - 1}")
    column=$((${#before} + 1))
  fi
  jq -nc --argjson line "$line" --argjson column "${column:-1}" --argjson length "${#text}" \
    --arg message "${3:0:500}" '{
    line: $line, column: $column, endLine: $line, endColumn: ([$column, $length + 1] | max), rule: "syntax",
    message: $message, severity: "error"}'
}

IFS= read -r name
mkdir /tmp/check
cd /tmp/check
cat > "$name"
if shfmt -ln bash -i 2 "$name" > formatted 2> errors; then
  mv formatted "$name"
  code=$name
else
  code=/dev/null
  [ -s errors ]
fi
if [ "$code" = "$name" ]; then
  # Bash reads here what shfmt has already parsed; it refuses a little more.
  bash -n "$name" 2> errors || true
fi
while IFS= read -r error; do
  if [[ $error =~ ^"$name":([0-9]+|\?):([0-9]+|\?):\ (.*)$ ]]; then
    # shfmt counts to the line 262143 and the column 16383, and says ? beyond.
    problem "${BASH_REMATCH[1]/\?/262143}" "${BASH_REMATCH[2]/\?/}" "${BASH_REMATCH[3]}"
  elif [[ $error =~ ^"$name":\ line\ ([0-9]+):\ ([^\`].*)$ ]]; then
    problem "${BASH_REMATCH[1]}" "" "${BASH_REMATCH[2]}"
  fi
done < errors > problems
if [ "$code" = /dev/null ] && ! [ -s problems ]; then
  cat errors >&2
  exit 1
fi
jq -nc --rawfile code "$code" --slurpfile problems problems --arg parsed "$code" '{
  code: (if $parsed == "/dev/null" then null else $code end), problems: $problems[0:100]}'
