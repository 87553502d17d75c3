#!/usr/bin/env perl
# The commands of pages: prints PAGE and command, parted by a tab, of each fenced block of `sh`, with its continued lines joined.
#
# usage: pages.pl PAGE…
#
# A block that the gate does not run has a line before it: <!-- not run: REASON -->. Its commands are not printed. A fence that would be
# read as prose, or the other way round, is a fault: text after the language of an opening fence, and a fence that is never closed.
use strict;
use warnings;

my $faults = 0;
sub fault { print STDERR "@_\n"; $faults++ }

for my $page (@ARGV) {
    open my $file, '<', $page or die "open $page: $!\n";
    my ($language, $opened, $mark, $command, $is_run) = (undef, 0, '', '', 0);
    while (my $line = <$file>) {
        chomp $line;
        my $at = "$page:$.";
        if (defined $language) {
            if ($line =~ /^\s*```\s*$/) {
                fault("$at: the last command is not finished") if $command ne '';
                ($language, $command) = (undef, '');
                next;
            }
            fault("$at: a fence in the block of line $opened") if $line =~ /```/ && $language ne 'markdown';
            next unless $is_run;
            $line =~ s/^\s+//;
            next if $line eq '' || $line =~ /^#/;
            $command .= $line;
            next if $command =~ s/\s*\\$/ /;
            print "$page\t$command\n";
            $command = '';
        } elsif ($line =~ /^\s*```/) {
            if ($line =~ /^\s*```([\w-]*)$/) {
                ($language, $opened) = ($1, $.);
                $is_run = $language eq 'sh' && $mark eq '';
            } else {
                fault("$at: text after the language of a fence");
            }
        } elsif ($line =~ /\S\s*```\s*$/) {
            fault("$at: a fence behind text");
        }
        $mark = $line =~ /^\s*<!-- not run: (\S.*) -->$/ ? $1 : '' unless defined $language;
        fault("$at: a block that is not run needs a reason") if $line =~ /^\s*<!-- not run/ && $mark eq '';
    }
    fault("$page:$opened: the fence is never closed") if defined $language;
}
exit($faults > 0);
