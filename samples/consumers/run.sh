#!/usr/bin/env bash
# Builds and runs the programs of this folder, each from the Maven repository in FOLDER: run.sh FOLDER VERSION [NAME ...]
# JAVA_HOME is a JDK 25. Third parties come from Central, or from ~/.m2 where they are there already.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd -P)
root=$(cd "$here/../.." && pwd -P)
export CHAGRES_STAGED=$1 version=$2
shift 2
work=$root/target/consumers
expected='[2.0, 4.0, 6.0]'
archetype_plugin=3.4.1

# Of Chagres itself nothing but what FOLDER has may come in.
repository=$work/repository
rm -rf "$repository/dev/chagres"
mkdir -p "$repository"

by_maven() {
    (cd "$root" && MAVEN_OPTS="--sun-misc-unsafe-memory-access=allow ${MAVEN_OPTS:-}" ./mvnw -q -B -gs "$here/settings.xml" \
        -f "${2:-$here/$1/pom.xml}" "-Dmaven.repo.local=$repository" "-Dmaven.repo.local.tail=$HOME/.m2/repository" \
        "-Dchagres.version=$version" -Dkotlin.compiler.daemon=false verify) || return 1 # set -e does not hold in a condition
    local jar=$repository/dev/chagres/chagres/$version/chagres-$version.jar
    [ -f "$jar" ] || { echo "dev.chagres:chagres:$version came from elsewhere than $CHAGRES_STAGED" >&2; return 1; }
}

# Makes a project of the archetype, and runs its benchmark.
by_archetype() {
    rm -rf "$work/archetype"
    mkdir -p "$work/archetype"
    (cd "$work/archetype" && MAVEN_OPTS="--sun-misc-unsafe-memory-access=allow ${MAVEN_OPTS:-}" "$root/mvnw" -q -B \
        -gs "$here/settings.xml" "-Dmaven.repo.local=$repository" "-Dmaven.repo.local.tail=$HOME/.m2/repository" \
        "org.apache.maven.plugins:maven-archetype-plugin:$archetype_plugin:generate" -DinteractiveMode=false \
        -DarchetypeGroupId=dev.chagres -DarchetypeArtifactId=chagres-jmh-archetype "-DarchetypeVersion=$version" \
        -DgroupId=example -DartifactId=made -Dpackage=example.made) || return 1
    by_maven archetype "$work/archetype/made/pom.xml"
}

by_gradle() {
    gradle --quiet --project-dir "$here/gradle" --project-cache-dir "$work/gradle" "-Pchagres.version=$version" run
}

by_jbang() {
    jbang --fresh --repos "staged=file://$CHAGRES_STAGED,central" "-Dchagres.version=$version" "$here/jbang/Example.java"
}

[ $# -gt 0 ] || set -- $(cd "$here" && find . -mindepth 1 -maxdepth 1 -type d | sed 's/..//' | LC_ALL=C sort)
status=0
for name in "$@"; do
    if [ ! -d "$here/$name" ]; then
        echo "No program of samples/consumers is called '$name'." >&2
        exit 2
    fi
    tool=maven
    case $name in gradle | jbang | archetype) tool=$name ;; esac
    if [ "$tool" != maven ] && [ "$tool" != archetype ] && ! command -v "$tool" >/dev/null; then
        echo "$name: skipped: this machine has no $tool"
        continue
    fi
    mkdir -p "$work"
    log=$work/$name.log
    if "by_$tool" "$name" >"$log" 2>&1 && grep -qF "$expected" "$log"; then
        echo "$name: $expected"
    else
        tail -n 30 "$log" >&2
        echo "$name: failed; the whole log is $log" >&2
        status=1
    fi
done
exit $status
