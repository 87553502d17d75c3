#!/usr/bin/env perl
# The commands of pages: prints PAGE and command, parted by a tab, of each fenced block of `sh`, with its continued lines joined.
#
# usage: pages.pl PAGE…
#        pages.pl --runbook PAGE     heading, hosts and text of each block that names its hosts, each ended by a NUL
#
# A line before a block, <!-- hosts: a b -->, names the hosts on which it runs, one after the other: .ci/runbooks runs it, as one script.
# <!-- set up a b: COMMAND --> is such a block that readers do not see. Without a heading: a block that precedes all others.
#
# A block that the gate does not run has a line before it: <!-- not run: REASON -->. Its commands are not printed. A fence that would be
# read as prose, or the other way round, is a fault: text after the language of an opening fence, and a fence that is never closed.
use strict;
use warnings;

my $runbook = @ARGV && $ARGV[0] eq '--runbook' && shift @ARGV;
my $faults = 0;
sub fault { print STDERR "@_\n"; $faults++ }

for my $page (@ARGV) {
    open my $file, '<', $page or die "open $page: $!\n";
    my ($language, $opened, $mark, $command, $is_run) = (undef, 0, '', '', 0);
    my ($heading, $hosts, $block) = ('', '', '');
    while (my $line = <$file>) {
        chomp $line;
        my $at = "$page:$.";
        if (defined $language) {
            if ($line =~ /^\s*```\s*$/) {
                fault("$at: the last command is not finished") if $command ne '';
                print "$heading\0$hosts\0$block\0" if $runbook && $hosts ne '';
                ($language, $command, $hosts, $block) = (undef, '', '', '');
                next;
            }
            fault("$at: a fence in the block of line $opened") if $line =~ /```/ && $language ne 'markdown';
            $block .= "$line\n" if $hosts ne '';
            next unless $is_run;
            $line =~ s/^\s+//;
            next if $line eq '' || $line =~ /^#/;
            $command .= $line;
            next if $command =~ s/\s*\\$/ /;
            print "$page\t$command\n" unless $runbook;
            $command = '';
        } elsif ($line =~ /^\s*```/) {
            if ($line =~ /^\s*```([\w-]*)$/) {
                ($language, $opened) = ($1, $.);
                $is_run = $language eq 'sh' && $mark eq '' && $hosts eq '';
                fault("$at: only a block of `sh` has hosts") if $hosts ne '' && $language ne 'sh';
            } else {
                fault("$at: text after the language of a fence");
            }
        } elsif ($line =~ /\S\s*```\s*$/) {
            fault("$at: a fence behind text");
        }
        unless (defined $language) {
            fault("$at: no block follows the line of hosts") if $hosts ne '' && $line =~ /\S/;
            ($heading) = $line =~ /^##+ (.*)/ if $line =~ /^## /;
            $hosts = $1 if $line =~ /^\s*<!-- hosts: ([a-z](?: [a-z])*) -->$/;
            print "$heading\0$1\0$2\n\0" if $line =~ /^\s*<!-- set up ([a-z](?: [a-z])*): (.*) -->$/ && $runbook;
            fault("$at: neither hosts nor a command") if $line =~ /^\s*<!-- (?:hosts|set up)/ && $line !~ /^\s*<!-- (?:hosts: [a-z ]+|set up [a-z ]+: .*) -->$/;
        }
        $mark = $line =~ /^\s*<!-- not run: (\S.*) -->$/ ? $1 : '' unless defined $language;
        fault("$at: a block that is not run needs a reason") if $line =~ /^\s*<!-- not run/ && $mark eq '';
    }
    fault("$page:$opened: the fence is never closed") if defined $language;
}
exit($faults > 0);
