// Uses jetcd as its documentation does, and prints what it answers.
//
// ENDPOINTS are host:port. CA, CERT and KEY are files, NAME and PASSWORD those of a user; all of them may be missing.
// With KILL, a file, the client writes before and after a member is killed: it makes the file, and waits for KILL.done.
// Nothing that differs between two runs is printed.

import io.etcd.jetcd.ByteSequence;
import io.etcd.jetcd.Client;
import io.etcd.jetcd.ClientBuilder;
import io.etcd.jetcd.KV;
import io.etcd.jetcd.Watch;
import io.etcd.jetcd.kv.TxnResponse;
import io.etcd.jetcd.op.Cmp;
import io.etcd.jetcd.op.CmpTarget;
import io.etcd.jetcd.op.Op;
import io.etcd.jetcd.options.DeleteOption;
import io.etcd.jetcd.options.GetOption;
import io.etcd.jetcd.options.LeaseOption;
import io.etcd.jetcd.options.PutOption;
import io.etcd.jetcd.options.WatchOption;
import io.grpc.netty.GrpcSslContexts;
import java.io.File;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.stream.Stream;

public final class Check {
    // No call should come near it, however busy the machine is.
    private static final long TIMEOUT_SECONDS = 60;

    private static ByteSequence bytes(String text) {
        return ByteSequence.from(text.getBytes());
    }

    private static <T> T get(CompletableFuture<T> call) throws Exception {
        return call.get(TIMEOUT_SECONDS, TimeUnit.SECONDS);
    }

    private static String failure(CompletableFuture<?> call) throws Exception {
        try {
            get(call);
            return "accepted";
        } catch (ExecutionException error) {
            return error.getCause().toString();
        }
    }

    private static Client connect() throws Exception {
        String authority = System.getenv("CA"), certificate = System.getenv("CERT"), name = System.getenv("NAME");
        String scheme = authority == null ? "http://" : "https://";
        ClientBuilder builder = Client.builder().endpoints(
                Stream.of(System.getenv("ENDPOINTS").split(",")).map(scheme::concat).toArray(String[]::new));
        if (authority != null) {
            var tls = GrpcSslContexts.forClient().trustManager(new File(authority));
            if (certificate != null) {
                tls.keyManager(new File(certificate), new File(System.getenv("KEY")));
            }
            builder.sslContext(tls.build());
        }
        if (name != null) {
            builder.user(bytes(name)).password(bytes(System.getenv("PASSWORD")));
        }
        return builder.build();
    }

    private static List<String> pairs(io.etcd.jetcd.kv.GetResponse answer) {
        List<String> pairs = new ArrayList<>();
        answer.getKvs().forEach(kv -> pairs.add(kv.getKey() + "=" + kv.getValue() + " version " + kv.getVersion()));
        return pairs;
    }

    private static void values(Client client) throws Exception {
        KV kv = client.getKVClient();
        get(kv.put(bytes("app/a"), bytes("1")));
        get(kv.put(bytes("app/b"), bytes("2")));
        var old = get(kv.put(bytes("app/a"), bytes("3"), PutOption.builder().withPrevKV().build()));
        System.out.println("put over " + old.getPrevKv().getValue());
        System.out.println("get " + pairs(get(kv.get(bytes("app/a")))) + pairs(get(kv.get(bytes("app/none")))));
        GetOption prefix = GetOption.builder().isPrefix(true).withSortField(GetOption.SortTarget.KEY)
                .withSortOrder(GetOption.SortOrder.DESCEND).build();
        System.out.println("prefix " + pairs(get(kv.get(bytes("app/"), prefix))));
        GetOption limit = GetOption.builder().isPrefix(true).withLimit(1).build();
        var page = get(kv.get(bytes("app/"), limit));
        System.out.println("limit " + pairs(page) + " more " + page.isMore() + " count " + page.getCount());
        DeleteOption all = DeleteOption.builder().isPrefix(true).withPrevKV(true).build();
        var deleted = get(kv.delete(bytes("app/"), all));
        System.out.println("delete " + deleted.getDeleted() + ", with values " + deleted.getPrevKvs().size());
    }

    private static void transactions(Client client) throws Exception {
        ByteSequence key = bytes("app/t");
        for (long version : new long[] {0, 7}) {
            TxnResponse answer = get(client.getKVClient().txn()
                    .If(new Cmp(key, Cmp.Op.EQUAL, CmpTarget.version(version)))
                    .Then(Op.put(key, bytes("made"), PutOption.DEFAULT), Op.get(key, GetOption.DEFAULT))
                    .Else(Op.get(key, GetOption.DEFAULT), Op.delete(key, DeleteOption.DEFAULT))
                    .commit());
            System.out.println("transaction " + answer.isSucceeded() + " " + pairs(answer.getGetResponses().get(0))
                    + " deletes " + answer.getDeleteResponses().size());
        }
    }

    private static void watches(Client client) throws Exception {
        BlockingQueue<String> seen = new LinkedBlockingQueue<>();
        KV kv = client.getKVClient();
        long revision = get(kv.get(bytes("app/w"))).getHeader().getRevision();
        WatchOption option =
                WatchOption.builder().isPrefix(true).withPrevKV(true).withRevision(revision + 1).build();
        try (Watch.Watcher watcher = client.getWatchClient().watch(bytes("app/w"), option, answer ->
                answer.getEvents().forEach(event -> seen.add(event.getEventType() + " "
                        + event.getKeyValue().getValue() + " over " + event.getPrevKV().getValue())))) {
            get(kv.put(bytes("app/w1"), bytes("a")));
            get(kv.put(bytes("app/w1"), bytes("b")));
            get(kv.delete(bytes("app/w1")));
            for (int i = 0; i < 3; i++) {
                System.out.println("watch " + next(seen));
            }
        }
    }

    private static String next(BlockingQueue<String> seen) throws Exception {
        String event = seen.poll(TIMEOUT_SECONDS, TimeUnit.SECONDS);
        if (event == null) {
            throw new TimeoutException("no event");
        }
        return event;
    }

    private static void leases(Client client) throws Exception {
        var leases = client.getLeaseClient();
        ByteSequence key = bytes("app/l");
        long lease = get(leases.grant(300)).getID();
        get(client.getKVClient().put(key, bytes("kept"), PutOption.builder().withLeaseId(lease).build()));
        var left = get(leases.timeToLive(lease, LeaseOption.builder().withAttachedKeys().build()));
        System.out.println("lease " + left.getGrantedTTL() + " " + left.getKeys());
        System.out.println("refresh " + get(leases.keepAliveOnce(lease)).getTTL());
        get(leases.revoke(lease));
        System.out.println("revoked " + pairs(get(client.getKVClient().get(key))));
        BlockingQueue<String> seen = new LinkedBlockingQueue<>();
        long revision = client.getKVClient().get(key).get().getHeader().getRevision();
        WatchOption option = WatchOption.builder().withRevision(revision + 1).withNoPut(true).build();
        try (Watch.Watcher watcher = client.getWatchClient().watch(key, option, answer ->
                answer.getEvents().forEach(event -> seen.add(event.getEventType().toString())))) {
            long brief = get(leases.grant(1)).getID();
            get(client.getKVClient().put(key, bytes("brief"), PutOption.builder().withLeaseId(brief).build()));
            System.out.println("expired " + next(seen));
        }
    }

    private static void locks(Client client) throws Exception {
        long first = get(client.getLeaseClient().grant(60)).getID(), second = get(client.getLeaseClient().grant(60)).getID();
        var locks = client.getLockClient();
        ByteSequence name = bytes("app/lock");
        ByteSequence held = get(locks.lock(name, first)).getKey();
        System.out.println("lock " + held.toString().startsWith("app/lock/"));
        var waiting = locks.lock(name, second);
        get(locks.unlock(held));
        get(locks.unlock(get(waiting).getKey()));
        System.out.println("second lock after the first");
    }

    private static void elections(Client client) throws Exception {
        var elections = client.getElectionClient();
        ByteSequence name = bytes("app/election");
        long lease = get(client.getLeaseClient().grant(60)).getID();
        var key = get(elections.campaign(name, lease, bytes("first"))).getLeader();
        System.out.println("leader " + get(elections.leader(name)).getKv().getValue());
        get(elections.proclaim(key, bytes("changed")));
        System.out.println("leader " + get(elections.leader(name)).getKv().getValue());
        get(elections.resign(key));
        System.out.println("leader " + failure(elections.leader(name)));
    }

    private static void refusals(Client client) throws Exception {
        KV kv = client.getKVClient();
        long revision = get(kv.get(bytes("app/none"))).getHeader().getRevision();
        if (System.getenv("NAME") != null) {
            System.out.println("of another: " + failure(kv.put(bytes("other"), bytes("x"))));
            System.out.println("of another, read: " + failure(kv.get(bytes("other"))));
            System.out.println("users: " + failure(client.getAuthClient().userList()));
            return;
        }
        System.out.println("future: " + failure(kv.compact(revision + 1000)));
        get(kv.compact(revision));
        System.out.println("compacted: " + failure(kv.compact(revision)));
        GetOption old = GetOption.builder().withRevision(1).build();
        System.out.println("compacted, read: " + failure(kv.get(bytes("app/a"), old)));
        System.out.println("large: " + failure(kv.put(bytes("app/large"), bytes("x".repeat(1_700_000)))));
        get(client.getClusterClient().listMember()).getMembers().forEach(m -> System.out.println("member " + m.getName()));
    }

    // Writes before and after the kill.
    private static final int WRITES = 30;

    private static void failover(Client client) throws Exception {
        KV kv = client.getKVClient();
        long lease = get(client.getLeaseClient().grant(60)).getID();
        get(kv.put(bytes("app/leased"), bytes("x"), PutOption.builder().withLeaseId(lease).build()));
        BlockingQueue<String> seen = new LinkedBlockingQueue<>();
        long revision = get(kv.get(bytes("app/f"))).getHeader().getRevision();
        WatchOption option = WatchOption.builder().isPrefix(true).withRevision(revision + 1).build();
        try (Watch.Watcher watcher = client.getWatchClient().watch(bytes("app/f/"), option, answer ->
                answer.getEvents().stream().filter(event -> event.getKeyValue().getVersion() == 1)
                        .forEach(event -> seen.add(event.getKeyValue().getKey().toString())))) {
            for (int i = 0; i < 2 * WRITES; i++) {
                if (i == WRITES) {
                    kill();
                }
                untilWritten(kv, name(i));
            }
            boolean inOrder = true;
            for (int i = 0; i < 2 * WRITES; i++) {
                inOrder &= next(seen).equals(name(i));
            }
            System.out.println("watch " + inOrder);
        }
        GetOption count = GetOption.builder().isPrefix(true).withCountOnly(true).build();
        System.out.println("keys " + get(kv.get(bytes("app/f/"), count)).getCount() + " lease "
                + get(client.getLeaseClient().keepAliveOnce(lease)).getTTL());
        System.out.println("lock " + get(client.getLockClient().lock(bytes("app/lock"), lease)).getKey().toString()
                .startsWith("app/lock/"));
    }

    private static String name(int i) {
        return String.format("app/f/%02d", i);
    }

    private static void untilWritten(KV kv, String key) throws Exception {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(TIMEOUT_SECONDS);
        while (true) {
            try {
                kv.put(bytes(key), bytes("x")).get(2, TimeUnit.SECONDS);
                return;
            } catch (ExecutionException | TimeoutException error) {
                if (System.nanoTime() > end) {
                    throw error;
                }
                Thread.sleep(50);
            }
        }
    }

    private static void kill() throws Exception {
        Path file = Path.of(System.getenv("KILL"));
        Files.createFile(file);
        while (!Files.exists(Path.of(file + ".done"))) {
            Thread.sleep(10);
        }
    }

    public static void main(String[] arguments) throws Exception {
        try (Client client = connect()) {
            if (System.getenv("KILL") != null) {
                failover(client);
                return;
            }
            values(client);
            transactions(client);
            watches(client);
            leases(client);
            locks(client);
            elections(client);
            refusals(client);
        }
    }
}
