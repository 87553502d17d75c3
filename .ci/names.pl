#!/usr/bin/perl
# What pages name in backticks must exist: files, functions, tests, types, flags, metrics; and the rows of
# docs/internals/limits.md, and as many files as a list says. usage: names.pl PAGE…, at the root of the
# repository. Code blocks are skipped. A test that a row of a table names beside a file must be able to fail with
# that file: its crate links the crate of the file.
use strict;
use warnings;
use JSON::PP 'decode_json';

my (%words, %files, %modules, %of_crate, $failed);
# Made by a build, or names of other programs.
my %elsewhere = map { $_ => 1 } qw(interop/bin libgcc_s rule_files AWS_SESSION_TOKEN jemalloc_pprof perf_event_open .txt);
for my $file (split /\0/, qx(git ls-files -z)) {
    my $suffix = $file;
    do { $files{$suffix} = 1; $files{$suffix =~ s/\.\w+$//r} = 1 } while $suffix =~ s{^[^/]+/}{};
    my $folder = $file;
    while ($folder =~ s{/[^/]+$}{}) { $suffix = $folder; do { $files{$suffix} = 1 } while $suffix =~ s{^[^/]+/}{} }
    next if $file =~ /\.(md|png|svg|lock|html)$/ || $file =~ m{^(fuzz/corpus|crates/api/src/generated)/} || !-f $file;
    open my $in, '<', $file or next;
    local $/;
    my $text = <$in>;
    $words{$_} = 1 for $text =~ /\w+/g;
    my ($crate) = $file =~ m{^crates/([\w-]+)/};
    if ($crate) { $of_crate{$crate}{$_} = 1 for $text =~ /\w+/g, $file =~ /\w+/g }
    $modules{$_} = 1 for $text =~ /\bmod (\w+)/g;
    $words{$_} = 1 for $text =~ /[a-z][a-z0-9]*(?:-[a-z0-9]+)+/g;
}

# Crates that the tests of a crate link or run, itself included.
my %linked;
{
    my (%uses, %tests);
    for my $manifest (glob 'crates/*/Cargo.toml') {
        my ($crate) = $manifest =~ m{^crates/([\w-]+)/};
        my $section = '';
        open my $in, '<', $manifest or die "$manifest: $!";
        while (<$in>) {
            $section = $1 if /^\[(.*)\]/;
            my ($name) = /^([\w-]+)(?:\.workspace)? = / or next;
            next if !-d "crates/$name" || $section !~ /(^|\.)(dev-)?dependencies$/;
            push @{($section =~ /dev-dependencies$/ ? \%tests : \%uses)->{$crate}}, $name;
        }
    }
    for my $crate (map { m{^crates/([\w-]+)/} } glob 'crates/*/Cargo.toml') {
        my @left = ($crate, @{$tests{$crate} // []});
        # Its tests run the program of the server.
        push @left, 'kv-server' if $crate eq 'kvctl' || $crate eq 'checker';
        while (defined(my $next = pop @left)) {
            push @left, @{$uses{$next} // []} if !$linked{$crate}{$next}++;
        }
    }
}

# Steps that are recorded of etcd, and outcomes of the matrix.
my $steps = 0;
for my $file (glob 'crates/kv-server/tests/conformance/recordings/*') {
    my $recording = decode_json(do { local (@ARGV, $/) = $file; <> });
    $steps += @{$recording->{steps} // []};
    $steps += length($_->{outcomes} // '') for @{$recording->{rows} // []};
}

sub exists_here {
    my ($name) = @_;
    return 1 if $name =~ /NAME|NNNN/ || $elsewhere{$name};
    if ($name =~ s/^(--[a-z][a-z0-9-]+)(=.*| .*)?$/$1/) {
        $name = substr $name, 2;
        return $words{$name} || $words{$name =~ tr/-/_/r};
    }
    return 1 if $name =~ /[\s<>…*()\$"{}=,~]|^-|^\// && $name !~ /^(kv_server|etcd)_\w+\{/;
    $name =~ s/\{.*//;
    return $files{$name =~ s{^(\./|/)|[/:]+$}{}gr} if $name =~ m{^[\w.-]+(/[\w.-]+)+/?$} && $name =~ m{^(crates|docs|interop|deploy|fuzz|benches|\.ci|proto)/|\.(rs|md|txt|sh|go|json|toml|proto|matrix)$};
    return $files{$name} || $words{$name} if $name =~ /\.(rs|txt|matrix)$/;
    return 1 if $name !~ /^[A-Za-z]\w*(::\w+)*(::)?$/ || $name !~ /_|::/;
    my ($last) = $name =~ /(\w+)(?:::)?$/;
    return $files{$last} || $modules{$last} if $name =~ /::$/;
    return $words{$last} || $words{$last =~ s/_(bytes_total|total|count|sum|bucket)$//r}
        || $words{$last =~ s/_total$//r} || $files{$last};
}

for my $page (@ARGV) {
    open my $in, '<', $page or die "$page: $!";
    my ($in_code, $listed, %list) = 0;
    while (<$in>) {
        my $at = $.; # Before another file is read.
        # "… passes N files.", and their table.
        $listed = $1 if /\bpasses (\d+) files\./;
        if ($listed && /^\| [^`]*\| `/) {
            -f "crates/$_" && !$list{$_}++ or $failed = print "$page:$at: $_: no file below crates/, or twice\n"
                for /`([^`]+)`/g;
        }
        if (%list && (eof || !/^\|/)) {
            keys %list == $listed or $failed = print "$page:$at: a list of " . keys(%list) . " files, not $listed\n";
            ($listed, %list) = ();
        }
        $in_code = !$in_code if /^\s*```/;
        next if $in_code || /\| (omitted|never) \|/;
        if ($page =~ /limits\.md$/ && /^\| [^|]+\| [^|]+\| `([^`]+)` \| `(\w+) = ([^`]+)` \|/) {
            my ($file, $name, $value) = ($1, $2, $3);
            my $text = do { local (@ARGV, $/) = "crates/$file"; <> };
            $text =~ /\b$name(: [^=\n]+ =|:) \Q$value\E[;,]/
                or $failed = print "$page: crates/$file does not say $name = $value\n";
        }
        if (/\b([\d,]+) recorded steps|\*\*together\*\*.*?([\d,]{4,})/) {
            ($1 // $2) =~ tr/,//dr == $steps or $failed = print "$page:$at: $steps steps are recorded\n";
        }
        # A crate and what it has, such as its test.
        my @tests;
        while (/`([\w-]+)` (?=`([\w:]+)`)/g) {
            my ($crate, $name) = ($1, $2);
            my ($last) = $name =~ /(\w+)(?:::)?$/;
            next if !$of_crate{$crate};
            push @tests, $crate;
            $of_crate{$crate}{$last} or $failed = print "$page:$at: $name is not in crates/$crate\n";
        }
        if (@tests && $page =~ /(ARCHITECTURE|limits)\.md$/ && /^\|/) {
            for my $owner (m{`([\w-]+)/src/[^`]*\.rs`}g) {
                grep { $linked{$_}{$owner} } @tests
                    or $failed = print "$page:$at: no test of this row links the crate $owner: @tests\n";
            }
        }
        while (/`([^`]+)`/g) {
            my $name = $1;
            exists_here($name) or $failed = print "$page:$at: $name does not exist\n";
        }
    }
}
exit($failed ? 1 : 0);
