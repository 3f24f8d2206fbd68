#!/usr/bin/env bash
# Fetches the jars of Cassandra from Maven Central into .cache/cassandra/ of this checkout, 66 MB, for
# the tests and benchmarks that run a real node. Needs Maven and Java 17, and no root. What cannot be
# had is said in one sentence, with exit status 1.
set -u

cd "$(dirname "$0")/.."
version=5.0.4
home=.cache/cassandra
say() { printf 'cassandra: %s\n' "$*" >&2; }

[ "$(cat "$home/version" 2> /dev/null)" != "$version" ] || exit 0
for tool in java mvn; do
    if ! command -v $tool > /dev/null; then
        say "there is no $tool: install Java 17 and Maven to run a real Cassandra"
        exit 1
    fi
done
mkdir -p "$home"
cat > "$home/pom.xml" << 'POM'
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>workstealing</groupId><artifactId>cassandra-for-tests</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>org.apache.cassandra</groupId><artifactId>cassandra-all</artifactId>
    <version>VERSION</version>
  </dependency></dependencies>
</project>
POM
sed -i "s/VERSION/$version/" "$home/pom.xml"
say "fetching Cassandra $version from Maven Central (66 MB, a minute or two)"
rm -rf "$home/lib"
if ! (cd "$home" && mvn -q -B dependency:copy-dependencies -DoutputDirectory=lib) \
    < /dev/null > "$home/mvn.log" 2>&1; then
    say "Maven could not fetch it; its message is in $home/mvn.log"
    exit 1
fi
printf %s "$version" > "$home/version"
say "Cassandra $version is ready"
