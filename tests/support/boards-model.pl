# A model that always answers the same, and a Telegram where nobody writes, on port 8080 of an emulated board. Every Debian
# has Perl. /tmp/polled appears with the first poll.
use strict;
use warnings;
use IO::Socket::INET;

$SIG{CHLD} = "IGNORE";
my $listener = IO::Socket::INET->new(LocalAddr => "127.0.0.1:8080", Listen => 16, ReuseAddr => 1) or die "boards-model: $!";
while (my $client = $listener->accept) {
    next if fork;
    my ($path, $length) = ("", 0);
    while (my $line = <$client>) {
        last if $line =~ /^\r?\n$/;
        $path = $1 if $line =~ /^[A-Z]+ (\S+) HTTP/;
        $length = $1 if $line =~ /^content-length: *(\d+)/i;
    }
    read($client, my $request, $length);
    my ($type, $body) = ("application/json", '{"ok":true,"result":true}');
    if ($path =~ m{/chat/completions$}) {
        $type = "text/event-stream";
        $body = qq(data: {"choices":[{"index":0,"delta":{"content":"This is an answer."},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n);
    } elsif ($path =~ m{/getMe$}) {
        $body = '{"ok":true,"result":{"id":1,"is_bot":true,"first_name":"Board","username":"board_bot"}}';
    } elsif ($path =~ m{/getUpdates$}) {
        open(my $mark, ">", "/tmp/polled") or die "boards-model: $!";
        sleep 20;
        $body = '{"ok":true,"result":[]}';
    }
    printf $client "HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", $type,
        length $body, $body;
    exit;
}
