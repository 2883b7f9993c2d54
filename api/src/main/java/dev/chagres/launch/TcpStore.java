package dev.chagres.launch;

import dev.chagres.internal.RankNames;
import dev.chagres.launch.StoreRank.StoreCall;
import dev.chagres.nccl.PeerAgreement;
import dev.chagres.nccl.PeerProgress;
import dev.chagres.nccl.RankFailedException;
import java.io.IOException;
import java.net.BindException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.function.BiConsumer;
import java.util.function.Function;
import org.jspecify.annotations.Nullable;

/**
 * Where ranks that are processes hear of each other, over TCP: that all have come, what they then share, which has failed, who is left
 * after that, that all have finished. Rank 0 keeps the store, and listens at the named address alone; ranks prove to each other that they
 * know a secret, which itself is never sent.
 *
 * <p>The others listen, too, each at the address by which it reaches rank 0: when rank 0 has failed, the lowest rank that lives keeps the
 * store.
 *
 * <p>Threading: thread-safe; {@link #agree} on one thread.
 *
 * <p>Source: PyTorch's {@code TCPStore} does this for its process groups.
 */
final class TcpStore implements AutoCloseable, PeerAgreement {
    static final String ENDED = "its process has ended";
    static final String UNREADABLE = "it has sent what no rank sends: ";

    /** A rank that failed, and how. */
    record Failure(int rank, String text) {}

    private final RankEnvironment environment;
    private final PeerStatus news;
    private final StoreServer server;
    private final HandshakeReply welcome;
    /** Those that were left are among them: their end would say that this rank has ended. */
    private final List<StoreClient> clients = new ArrayList<>();
    /** Null where this rank keeps the store. */
    private volatile @Nullable StoreClient keeper;

    private volatile boolean closed;
    private int attempts;

    private TcpStore(
            RankEnvironment environment,
            PeerStatus news,
            StoreServer server,
            HandshakeReply welcome,
            @Nullable StoreMessages store) {
        this.environment = environment;
        this.news = news;
        this.server = server;
        this.welcome = welcome;
        server.meetAt(welcome.addresses());
        if (store != null) {
            keeper = client(0, store);
        }
    }

    /**
     * Waits until all ranks have come.
     *
     * @param build of the library, which must be the same on all
     * @param what the ranks do, which must be the same on all
     * @param shared what rank 0 gives to all
     * @throws IllegalStateException when a rank does not come within the timeout, comes twice, or is of another run; the text names it
     */
    static TcpStore join(RankEnvironment environment, String build, String what, byte[] shared, Duration timeout) {
        return join(environment, build, what, shared, timeout, StoreWait.PATIENCE);
    }

    /** Waits in the same way; after {@code patience} the log says for whom. */
    static TcpStore join(
            RankEnvironment environment,
            String build,
            String what,
            byte[] shared,
            Duration timeout,
            Duration patience) {
        Handshake greeting = new Handshake(environment, build, what);
        PeerStatus news = new PeerStatus(environment.rank(), environment.count());
        try {
            return environment.rank() == 0
                    ? asFirst(greeting, news, shared, timeout, patience)
                    : asOther(greeting, news, timeout, patience);
        } catch (RuntimeException failed) {
            news.close();
            throw failed;
        }
    }

    private static TcpStore asFirst(
            Handshake greeting, PeerStatus news, byte[] shared, Duration timeout, Duration patience) {
        RankEnvironment environment = greeting.environment();
        ServerSocket already = environment.listening();
        ServerSocket listening = already != null || environment.count() == 1 ? already : listen(environment);
        StoreServer server = StoreServer.first(greeting, news, listening);
        String where = unreachable(environment.store());
        try (StoreWait _ = new StoreWait(
                environment, patience, timeout, () -> RankNames.of(server.absent()) + " to come" + where)) {
            HandshakeReply welcome = listening == null
                    ? new HandshakeReply(shared, List.of(environment.store()))
                    : server.awaitRanks(shared, timeout);
            return new TcpStore(environment, news, server, welcome, null);
        } catch (RuntimeException failed) {
            server.close();
            throw failed;
        }
    }

    /** Says so if rank 0 was named by a host name that means this host alone, as Debian's {@code /etc/hosts} has it; else "". */
    private static String unreachable(InetSocketAddress store) {
        InetAddress address = store.getAddress();
        String name = store.getHostString();
        boolean meant = name.equals("localhost") || name.equals(address.getHostAddress());
        return meant || !address.isLoopbackAddress()
                ? ""
                : " to " + address.getHostAddress() + ", which " + name
                        + " means here, and which ranks on other hosts cannot"
                        + " reach; name an address of this host's network instead";
    }

    private static TcpStore asOther(Handshake greeting, PeerStatus news, Duration timeout, Duration patience) {
        RankEnvironment environment = greeting.environment();
        try (StoreWait wait =
                new StoreWait(environment, patience, timeout, () -> "rank 0 to listen at " + environment.store())) {
            return asOther(greeting, news, timeout, wait);
        }
    }

    private static TcpStore asOther(Handshake greeting, PeerStatus news, Duration timeout, StoreWait wait) {
        RankEnvironment environment = greeting.environment();
        long end = System.nanoTime() + timeout.toNanos();
        StoreMessages store = StoreClient.connect(environment, timeout, end);
        wait.goOn(() -> "rank 0, which waits for others: its log names them");
        StoreServer server = null;
        try {
            server = StoreServer.later(greeting, news, listen(environment, store.local()));
            HandshakeReply welcome = StoreClient.introduce(environment, server.hello(), timeout, end, store);
            return new TcpStore(environment, news, server, welcome, store);
        } catch (RuntimeException failed) {
            store.close();
            if (server != null) {
                server.close();
            }
            throw failed;
        }
    }

    private static ServerSocket listen(RankEnvironment environment) {
        try {
            return listen(environment.store(), environment.count());
        } catch (BindException used) {
            throw new IllegalStateException(
                    "rank 0 cannot listen at " + environment.store() + ": " + used.getMessage()
                            + "; name another port in " + RankEnvironment.PORT + ", or an address of this host in "
                            + RankEnvironment.ADDRESS,
                    used);
        } catch (IOException e) {
            throw new IllegalStateException(
                    "rank 0 cannot listen at " + environment.store() + ": " + e.getMessage(), e);
        }
    }

    private static ServerSocket listen(RankEnvironment environment, InetAddress local) {
        try {
            return listen(new InetSocketAddress(local, 0), environment.count());
        } catch (IOException e) {
            throw new IllegalStateException(
                    "rank " + environment.rank() + " cannot listen at " + local + ": " + e.getMessage(), e);
        }
    }

    private static ServerSocket listen(InetSocketAddress address, int ranks) throws IOException {
        ServerSocket socket = new ServerSocket();
        try {
            socket.setReuseAddress(true);
            socket.bind(address, ranks);
            return socket;
        } catch (IOException failed) {
            socket.close();
            throw failed;
        }
    }

    private StoreClient client(int rank, StoreMessages store) {
        StoreClient made = new StoreClient(rank, store, news, (ended, how) -> {
            if (!closed) {
                server.ended(ended, how);
            }
        });
        clients.add(made);
        return made;
    }

    /** Returns what rank 0 gave. */
    byte[] shared() {
        return welcome.shared().clone();
    }

    /** Tells the others that a rank has failed: this one, or one that it waited for; -1 when it does not know which. */
    void fail(int rank, String text) {
        StoreClient present = keeper;
        if (present == null) {
            server.tellOthers(rank, text);
        } else {
            present.fail(rank, text);
        }
    }

    /** Asks all other ranks that are left where they are, and returns who is to blame. */
    List<Integer> ask(String question) {
        StoreClient present = keeper;
        return present == null ? server.ask(environment.rank(), question) : present.ask(question);
    }

    /** Names who answers for this rank. */
    void answering(Function<String, PeerProgress> called) {
        news.answering(called);
    }

    /** Tells ranks what this one calls. */
    void call(List<Integer> ranks, String text) {
        int own = environment.rank();
        StoreCall call =
                new StoreCall(own, ranks.stream().filter(rank -> rank != own).toList(), text);
        StoreClient present = keeper;
        if (present == null) {
            call.passToOthers(server);
        } else {
            present.call(call);
        }
    }

    /** Names who hears what other ranks call. */
    void hearing(BiConsumer<Integer, String> called) {
        news.hearing(called);
    }

    /** Names who is told when another rank fails, at once where one has, and when it is decided who is left. */
    void listener(PeerStatus.Listener called) {
        news.listener(called);
    }

    @Override
    public Outcome agree(Proposal given) {
        return agreed(new ShrinkDecision.Proposal(
                ++attempts,
                given.members(),
                given.missed(),
                given.why(),
                given.value(),
                given.timeout().toMillis()));
    }

    private Outcome agreed(ShrinkDecision.Proposal proposal) {
        int own = environment.rank();
        Failure heard = news.failure();
        if (heard != null && heard.rank() == own) {
            throw tooLate(heard.text());
        }
        ShrinkDecision before = news.told();
        ShrinkDecision made = null;
        List<Integer> members = news.members().stream().sorted().toList();
        for (int i = 0; made == null && i < members.size(); i++) {
            made = agree(members.get(i), proposal, before);
        }
        if (made == null) {
            throw tooLate(RankNames.of(members) + " went on without it");
        }
        if (!made.refusal().isEmpty()) {
            throw new RankFailedException("rank " + own + " cannot go on: " + made.refusal(), List.of(), null);
        }
        if (!made.left().containsKey(own)) {
            throw tooLate(RankNames.of(made.left().keySet()) + " went on without it");
        }
        return new Outcome(made.left(), made.shared());
    }

    private RankFailedException tooLate(String why) {
        int own = environment.rank();
        return new RankFailedException("rank " + own + " came too late: " + why, List.of(own), null);
    }

    /** Lets {@code rank} find out who is left; null when it cannot. */
    private @Nullable ShrinkDecision agree(
            int rank, ShrinkDecision.Proposal proposal, @Nullable ShrinkDecision before) {
        StoreClient present = keeper;
        if (rank == environment.rank()) {
            keeper = null;
            server.agree(proposal);
            return news.awaitDecision(before, Long.MAX_VALUE / 1_000_000);
        }
        if (present == null || present.keeper != rank) {
            StoreMessages store = proposal.missed().contains(rank)
                    ? null
                    : StoreClient.reach(environment, welcome.addresses().get(rank), server.hello());
            if (store == null) {
                return null;
            }
            present = client(rank, store);
            keeper = present;
        }
        ShrinkDecision made = proposal.missed().contains(rank) ? null : present.agree(proposal, before);
        if (made == null) {
            present.leave("as rank " + environment.rank() + " says: " + proposal.why());
        }
        return made;
    }

    /** Tells the others that this rank has finished. */
    void done() {
        StoreClient present = keeper;
        if (present == null) {
            server.finished(environment.rank());
        } else {
            present.done(environment.rank());
        }
    }

    /** Waits until all ranks have finished; returns who has failed instead, or null. */
    @Nullable
    Failure awaitAll() {
        return news.awaitAll();
    }

    @Override
    public void close() {
        closed = true;
        server.close();
        clients.forEach(StoreClient::close);
        news.close();
    }
}
