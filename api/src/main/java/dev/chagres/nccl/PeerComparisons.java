package dev.chagres.nccl;

import dev.chagres.nccl.CallExchange.ComparedCall;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Predicate;
import java.util.stream.IntStream;
import org.jspecify.annotations.Nullable;

/**
 * Compares the next calls of ranks in several processes: each announces its call to the others through the store.
 *
 * <p>Threading: as {@link CallExchange}.
 */
final class PeerComparisons implements CallExchange {
    /** The prefix of questions that {@link #answers} answers. */
    static final String SAID = "said,";

    private static final String MEMBERS = "members";
    private static final String COLLECTIVE = "collective";
    private static final int THIS_PROCESS = -1;

    private final PeerPlace place;
    private final PeerCalls calls;
    private final int rank;
    /** The process of each rank. */
    private List<Integer> processes = List.of();

    /** How many transfers this rank has announced, by direction and ends. */
    private final Map<String, Long> transfers = new ConcurrentHashMap<>();
    /** How many collectives this rank has announced. */
    private volatile long collectives;

    PeerComparisons(PeerPlace place, int rank) {
        this.place = place;
        this.rank = rank;
        calls = place.peers().calls;
    }

    /** Finds out in which process each rank is. After a split each rank knows only its own, and tells all that may be among them. */
    void join(Endpoint endpoint) {
        if (place.isKnownToAll()) {
            processes = place.base();
            return;
        }
        String key = wire(MEMBERS);
        calls.tell(place.base(), key, Integer.toString(rank));
        int others = endpoint.ranks - 1;
        Map<Integer, String> members = await(
                endpoint, MEMBERS, List.of(), Called.in(endpoint.toString(), "split"), said -> said.size() == others);
        List<Integer> found = new ArrayList<>(IntStream.range(0, endpoint.ranks)
                .map(_ -> THIS_PROCESS)
                .boxed()
                .toList());
        members.forEach((process, number) -> found.set(Integer.parseInt(number), process));
        processes = List.copyOf(found);
        calls.forget(key);
    }

    /** Returns a key that no other communicator has. */
    private String wire(String key) {
        return place.name() + " " + key;
    }

    /**
     * Returns whether a key is one by which the ranks of a communicator say in which processes they are, and nobody here will ask for it:
     * the communicator that it was split from is not open here, so no rank here can be one of its ranks.
     */
    static boolean isUnwanted(String key, Set<String> open) {
        String end = " " + MEMBERS;
        return key.endsWith(end) && !open.contains(PeerPlace.parent(key.substring(0, key.length() - end.length())));
    }

    @Override
    public long nextTransfer(int from, int to, boolean sends) {
        return transfers.merge((sends ? "send " : "receive ") + from + " " + to, 1L, Long::sum);
    }

    @Override
    public void announce(int caller, ComparedCall call) {
        if (call.key().startsWith(COLLECTIVE)) {
            collectives = number(call.key().split("-"), 1);
        }
        calls.tell(others(call).stream().map(processes::get).toList(), wire(call.key()), call.said());
    }

    private List<Integer> others(ComparedCall call) {
        return call.callers().stream().filter(caller -> caller != rank).toList();
    }

    @Override
    public void compare(Endpoint endpoint, ComparedCall call, Called waiting) {
        List<Integer> wanted = others(call).stream().map(processes::get).toList();
        Map<Integer, String> said = await(
                endpoint, call.key(), wanted, waiting, heard -> heard.keySet().containsAll(wanted));
        calls.forget(wire(call.key()));
        List<@Nullable String> all = new ArrayList<>();
        for (int caller : call.callers()) {
            all.add(caller == rank ? call.said() : said.get(processes.get(caller)));
        }
        call.refuseDifference(all);
    }

    /** Waits for the others' announcements; throws if a rank fails or does not announce in time. */
    private Map<Integer, String> await(
            Endpoint endpoint,
            String key,
            List<Integer> wanted,
            Called waiting,
            Predicate<Map<Integer, String>> enough) {
        long begin = System.nanoTime();
        long timeout = endpoint.config.timeout().toMillis();
        Map<Integer, String> said =
                calls.await(wire(key), timeout, heard -> enough.test(heard) || endpoint.failure() != null);
        if (enough.test(said)) {
            return said; // A rank that has failed meanwhile had announced its call, too.
        }
        if (endpoint.failure() == null && Thread.currentThread().isInterrupted()) {
            endpoint.failInterrupted();
        } else if (endpoint.failure() == null) {
            List<Integer> behind = place.behind(SAID + key);
            List<Integer> missing = wanted.stream()
                    .filter(one -> !said.containsKey(one))
                    .map(place::rank)
                    .toList();
            endpoint.failures.fail(RankFailure.late(waiting, behind.isEmpty() ? missing : behind, timeout));
        }
        Duration waited = Duration.ofNanos(System.nanoTime() - begin);
        throw Objects.requireNonNull(endpoint.failure()).exception(waiting.waited(waited));
    }

    /** Returns whether this rank has said what it calls where another one, which asks, waits for that. Any thread. */
    boolean answers(String question) {
        String[] words = question.substring(SAID.length()).split("-");
        if (words[0].equals(COLLECTIVE)) {
            return collectives >= number(words, 1);
        }
        if (words[0].equals(MEMBERS)) {
            return true; // Else the communicator would be unknown here.
        }
        String ends = words[2] + " " + words[3];
        long sent = transfers.getOrDefault("send " + ends, 0L);
        long received = transfers.getOrDefault("receive " + ends, 0L);
        boolean isEnd = number(words, 2) == rank || number(words, 3) == rank;
        return !isEnd || Math.max(sent, received) >= number(words, 1);
    }

    private static long number(String[] words, int place) {
        return Long.parseLong(words[place]);
    }

    @Override
    public List<Integer> missing(ComparedCall call) {
        Map<Integer, String> said = calls.said(wire(call.key()));
        return others(call).stream()
                .filter(caller -> !said.containsKey(processes.get(caller)))
                .toList();
    }
}
