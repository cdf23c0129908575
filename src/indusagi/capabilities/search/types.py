"""Kinds of files by name, for the engine that is used where there is no ripgrep.

The names and patterns are ripgrep's, of the kinds that are asked for most.
"""

from __future__ import annotations

_TABLE = """
c *.[chH] *.[chH].in *.cats
config *.cfg *.conf *.config *.ini
cpp *.[ChH] *.[ChH].in *.[ch]pp *.[ch]pp.in *.[ch]xx *.[ch]xx.in *.cc *.cc.in *.hh *.hh.in *.inl
cs *.cs
csharp *.cs
css *.css *.scss
csv *.csv
dart *.dart
docker *Dockerfile*
elixir *.eex *.ex *.exs *.heex *.leex *.livemd
go *.go
graphql *.graphql *.graphqls
h *.h *.hh *.hpp
haskell *.c2hs *.cpphs *.hs *.hsc *.lhs
html *.ejs *.htm *.html
java *.java *.jsp *.jspx *.properties
js *.cjs *.js *.jsx *.mjs *.vue
json *.json *.sarif composer.lock
kotlin *.kt *.kts
less *.less
lua *.lua
markdown *.markdown *.md *.mdown *.mdwn *.mdx *.mkd *.mkdn
md *.markdown *.md *.mdown *.mdwn *.mdx *.mkd *.mkdn
perl *.PL *.perl *.pl *.plh *.plx *.pm *.t
php *.php *.php3 *.php4 *.php5 *.php7 *.php8 *.pht *.phtml
protobuf *.proto
py *.py *.pyi
python *.py *.pyi
r *.R *.Rmd *.Rnw *.r *.rmd *.rnw
rst *.rst
ruby *.gemspec *.rake *.rb *.rbw .irbrc Gemfile Rakefile config.ru
rust *.rs
scala *.sbt *.scala
sql *.psql *.sql
swift *.swift
toml *.toml Cargo.lock
ts *.cts *.mts *.ts *.tsx
txt *.txt
typescript *.cts *.mts *.ts *.tsx
vue *.vue
xml *.dtd *.rng *.sch *.xhtml *.xjb *.xml *.xml.dist *.xsd *.xsl *.xslt
yaml *.yaml *.yml
zig *.zig
"""


def file_types() -> dict[str, list[str]]:
    """Give the patterns of names for each kind."""
    types: dict[str, list[str]] = {}
    for row in _TABLE.strip().splitlines():
        name, *patterns = row.split()
        types[name] = [*patterns]
    return types
