/// In the environment of a program and of all that it starts: by this they are found again, since a provider's SIGKILL reaches
/// the first process only, and what starts a session of its own leaves every group. What clears its environment escapes.
pub(crate) const TREE: &str = "DRESSAGE_TREE";

/// Makes the home, and sees that the programs are there that these scripts use.
pub(crate) const PREPARE: &str = r#"
mkdir -p -- "$1" || exit 1
for program in bash env grep find stat sed tar gzip base64; do
  command -v "$program" >/dev/null || { echo "there is no $program in its image" >&2; exit 1; }
done
"#;

/// Runs a program: `DIRECTORY INPUT KEEP PROGRAM [ARGUMENT...]`. INPUT is a file that is read and removed, or empty. KEEP is
/// empty, or names the variables, between blanks, that are the whole environment.
pub(crate) const RUN: &str = r#"
directory=$1; input=$2; keep=$3; shift 3
mkdir -p -- "$directory" && cd -- "$directory" || exit 126
if [ -n "$input" ]; then exec <"$input"; rm -f -- "$input"; else exec </dev/null; fi
if [ -n "$keep" ]; then
  for name in $(env | sed -n 's/^\([A-Za-z_][A-Za-z0-9_]*\)=.*/\1/p'); do
    case "$keep" in *" $name "*) ;; *) unset "$name" ;; esac
  done
  unset name
fi
unset directory input keep OLDPWD
exec "$@"
"#;

/// Ends everything that has one of the marks given, and returns when nothing is left.
pub(crate) const END_TREES: &str = r#"
round=0
while [ "$round" -lt 100 ]; do
  found=
  for mark in "$@"; do
    for file in $(grep -lszx "DRESSAGE_TREE=$mark" /proc/[0-9]*/environ); do
      pid=${file#/proc/}
      kill -9 "${pid%/environ}" 2>/dev/null && found=1
    done
  done
  [ -z "$found" ] && exit 0
  round=$((round + 1)); sleep 0.02
done
exit 1
"#;

/// Puts an uploaded file in its place: `UPLOADED PATH MODE`. A file that was there keeps its permissions.
pub(crate) const PLACE: &str = r#"
mode=$3
[ -f "$2" ] && mode=$(stat -c %a -- "$2")
chmod "$mode" -- "$1" && mv -fT -- "$1" "$2" || { rm -f -- "$1"; exit 1; }
"#;

/// Size and path of regular files: `PATH LEVELS MOST`.
pub(crate) const LIST: &str =
    r#"find "$1" -maxdepth "$2" -type f -printf '%s %p\0' 2>/dev/null | head -z -n "$3""#;

/// Makes directories below the home anew: `HOME PATH...`. Whatever is there is moved aside, and so is what is in the way to it;
/// no link is followed. They are those of whom the home is.
pub(crate) const FRESH: &str = r#"
home=$1; shift
aside() {
  number=1
  while [ -e "$1.aside-$number" ] || [ -L "$1.aside-$number" ]; do number=$((number + 1)); done
  mv -T -- "$1" "$1.aside-$number"
}
chmod u+rwx -- "$home" || exit 1
for path in "$@"; do
  rest=${path#"${home%/}/"}
  [ "$rest" != "$path" ] && [ -n "$rest" ] || { echo "$path is not below the home" >&2; exit 1; }
  place=${home%/}
  while [ -n "$rest" ]; do
    name=${rest%%/*}
    case "$rest" in */*) rest=${rest#*/} ;; *) rest= ;; esac
    case "$name" in ''|.) continue ;; ..) echo "$path leads out of the home" >&2; exit 1 ;; esac
    place=$place/$name
    if [ -L "$place" ] || { [ -e "$place" ] && { [ -z "$rest" ] || [ ! -d "$place" ]; }; }; then
      aside "$place" || exit 1
    fi
    if [ -d "$place" ]; then
      chmod u+rwx -- "$place" || exit 1
    else
      mkdir -- "$place" && chown --reference="$home" -- "$place" || exit 1
    fi
  done
done
"#;

/// Gives a home, and an input if one is named, to a user for agents: `NUMBER NAME HOME INPUT`. The account is made where it is
/// missing. Says its number, whose the home was, and which program becomes it; or `-`, and why there is none. Needs root.
pub(crate) const HAND_OVER: &str = r#"
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
number=$1; name=$2; home=$3; input=$4
[ "$(id -u)" = 0 ] || { echo "- its programs cannot be root"; exit 0; }
[ "$home" != / ] || { echo "- everything is below the home"; exit 0; }
setpriv=$(command -v setpriv) || { echo "- there is no setpriv in its image"; exit 0; }
while grep -qs "^[^:]*:[^:]*:$number:" /etc/passwd /etc/group && ! grep -qs "^$name:[^:]*:$number:" /etc/passwd; do
  number=$((number + 1))
done
"$setpriv" --reuid="$number" --regid="$number" --clear-groups --no-new-privs -- /bin/sh -c : >/dev/null 2>&1 ||
  { echo "- root cannot become another user in it"; exit 0; }
if ! grep -qs "^$name:[^:]*:$number:" /etc/passwd; then
  # Without a name it is a user all the same.
  echo "$name:x:$number:" >>/etc/group; echo "$name:x:$number:$number::$home:/bin/bash" >>/etc/passwd
fi 2>/dev/null
owner=$(stat -L -c %u:%g -- "$home") || exit 1
find -H "$home" ! -uid "$number" -exec chown -h -- "$number:$number" {} + || exit 1
[ -z "$input" ] || chown -h -- "$number:$number" "$input" || exit 1
echo "$number $owner $setpriv"
"#;

/// Ends everything of a user for agents, and gives the home back: `NUMBER OWNER HOME SETPRIV FOLDERS`. What is that user's in
/// FOLDERS, between blanks, is removed. Needs root.
pub(crate) const END_AGENT: &str = r#"
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
number=$1; owner=$2; home=$3; setpriv=$4; folders=$5
round=0
while :; do
  # All at once, which no program can outrun by starting others.
  "$setpriv" --reuid="$number" --regid="$number" --clear-groups -- /bin/sh -c 'kill -9 -1' 2>/dev/null
  left=
  for file in $(grep -lsE "^Uid:.*[[:space:]]$number([[:space:]]|\$)" /proc/[0-9]*/status); do
    grep -qs '^State:[[:space:]]*Z' "$file" && continue
    # It may have ended the one that was to end all.
    left=1; pid=${file#/proc/}; kill -9 "${pid%/status}" 2>/dev/null
  done
  [ -n "$left" ] || break
  [ "$round" -lt 200 ] || { echo "what the agent started does not end" >&2; exit 1; }
  round=$((round + 1)); sleep 0.02
done
find -H "$home" -uid "$number" -exec chown -h -- "$owner" {} + || exit 1
chmod u+rwx -- "$home" || exit 1
for folder in $folders; do
  find "$folder" -mindepth 1 -uid "$number" -delete 2>/dev/null
done
exit 0
"#;

/// Where things are put: root's, in a folder whose entries are their owners' alone.
pub(crate) const PUT: &str = "/tmp/.dressage";

/// Where images have what was baked into them.
pub(crate) const BAKED: &str = "/opt/dressage";

/// Says where things are, by their marks: a line each, empty for those that are not there. Images may bring some along, in
/// `/opt/dressage`. What others than root can write, or could put something else in the place of, may be anything, and is not
/// there.
pub(crate) const WHERE: &str = r#"
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
# Says what is not root's alone, or why that is not known. A link is nobody's to write.
loose() { find "$@" \( ! -uid 0 -o ! -type l \( -perm -020 -o -perm -002 \) \) -print -quit 2>&1; }
whole() { [ -d "$1" ] && [ ! -L "$1" ] && [ -z "$(loose "$@")" ]; }
for mark in "$@"; do
  for place in /opt/dressage /tmp/.dressage; do
    [ -d "$place/$mark" ] && whole "$place" -maxdepth 0 && whole "$place/$mark" || continue
    # Of what is in /tmp nobody takes the place: its entries are their owners' alone.
    [ "$place" = /tmp/.dressage ] || whole "${place%/*}" -maxdepth 0 || continue
    echo "$place/$mark"; continue 2
  done
  echo
done
"#;

/// Unpacks an archive, which is then removed, into a folder that is there whole or not at all: `ARCHIVE FOLDER`. The name of the
/// folder is that of all in the archive. What is there is none of ours, or was not to be trusted.
pub(crate) const UNPACK: &str = r#"
umask 022
put=${2%/*}
if [ -e "$put" ] || [ -L "$put" ]; then
  [ -n "$(find "$put" -maxdepth 0 -type d -uid "$(id -u)" ! -perm -020 ! -perm -002)" ] || rm -rf -- "$put" || exit 1
fi
rm -rf -- "$2" "$2.new" || exit 1
mkdir -p -- "$2.new" && tar -xzof "$1" -C "$2.new" && rm -f -- "$1" && mv -T -- "$2.new/${2##*/}" "$2" && rmdir -- "$2.new"
"#;

/// Says what is at a path, links not followed: nothing where nothing is, else `st_mode` in hexadecimal digits, and the length in bytes.
pub(crate) const STAT: &str = r#"
if [ -e "$1" ] || [ -L "$1" ]; then stat -c '%f %s' -- "$1"; fi
"#;

/// Runs a program whose output comes in base64, since what carries it is for text: `PROGRAM [ARGUMENT...]`.
pub(crate) const AS_TEXT: &str = r#"
exec 3>&1
code=$({ { "$@" 3>&- 4>&-; echo "$?" >&4; } | base64 >&3 4>&-; } 4>&1)
exit "${code:-1}"
"#;

/// Runs a program whose output goes to files, and writes down its exit code: `FOLDER MARK PROGRAM [ARGUMENT...]`. Only the program has
/// the mark, so that who ends what has it leaves this to tell of it. Without a mark the program takes this one's place.
pub(crate) const IN_BACKGROUND: &str = r#"
folder=$1; mark=$2; shift 2
mkdir -p -- "${folder%/*}" && mkdir -m 700 -- "$folder" || exit 1
[ -n "$mark" ] || exec "$@" >"$folder/out" 2>"$folder/err"
env "DRESSAGE_TREE=$mark" "$@" >"$folder/out" 2>"$folder/err"
echo "$?" >"$folder/code.new" && mv -f -- "$folder/code.new" "$folder/code"
"#;

/// Waits until there is more than was read of what a program writes to files, or it has ended, or some seconds are over, and says
/// what there is, and how long the files were: `FOLDER READ_OF_OUT READ_OF_ERR MOST`.
pub(crate) const NEWS: &str = r#"
folder=$1; most=$4; round=0
while :; do
  code=-; [ -f "$folder/code" ] && code=$(cat "$folder/code")
  out=$(stat -c %s "$folder/out" 2>/dev/null || echo 0); err=$(stat -c %s "$folder/err" 2>/dev/null || echo 0)
  [ "$out" -gt "$2" ] || [ "$err" -gt "$3" ] || [ "$code" != - ] || [ "$round" -ge 60 ] && break
  round=$((round + 1))
  if [ "$round" -lt 10 ]; then sleep 0.02; elif [ "$round" -lt 20 ]; then sleep 0.1; else sleep 0.2; fi
done
echo "code $code $out $err"
echo "out $(tail -c "+$(($2 + 1))" "$folder/out" 2>/dev/null | head -c "$most" | base64 | tr -d '\n')"
echo "err $(tail -c "+$(($3 + 1))" "$folder/err" 2>/dev/null | head -c "$most" | base64 | tr -d '\n')"
"#;
