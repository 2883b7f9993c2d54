package dev.chagres.pipeline;

import dev.chagres.internal.Checks;
import dev.chagres.pass.PassObserver.Direction;
import dev.chagres.pipeline.PipelineOrders.Work;
import dev.chagres.pipeline.PipelineSchedule.Call;
import dev.chagres.pipeline.PipelineSchedule.End;
import dev.chagres.pipeline.PipelineSchedule.Exchange;
import dev.chagres.pipeline.PipelineSchedule.Step;
import dev.chagres.pipeline.PipelineSchedule.Transfer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.jspecify.annotations.Nullable;

/**
 * Lays out the steps of one rank of a pipeline: its calls, the transfers between them, and the pass and place of each.
 *
 * <p>Threading: confined to the thread that made it.
 */
final class PipelineSteps {
    private final PipelineTimes times;
    /** Whether there are backward calls, for which passes keep inputs and outputs of forward calls. */
    private final boolean trains;
    /** By forward call whose backward is still to come: its pass. */
    private final Map<Work, Integer> underWay = new HashMap<>();

    private final List<Step> steps = new ArrayList<>();
    private final BitSet busyPasses = new BitSet();
    private final BitSet busyPlaces = new BitSet();
    private int passes;
    private int places;
    /** Transfers, by time and number. */
    private final TreeMap<Integer, TreeMap<Integer, Transfer>> waiting = new TreeMap<>();

    PipelineSteps(PipelineTimes times, int rank) {
        this.times = times;
        trains = times.order(rank).stream().anyMatch(work -> work.direction() == Direction.BACKWARD);
        for (Work work : times.order(rank)) {
            sendBefore(times.of(work));
            release(waiting.get(times.of(work)));
            Call call = call(work);
            exchange(times.of(work), work, call);
            steps.add(call);
            finished(work, call);
        }
        sendBefore(Integer.MAX_VALUE);
    }

    private Call call(Work work) {
        if (work.direction() == Direction.FORWARD) {
            int pass = take(busyPasses);
            passes = Math.max(passes, pass + 1);
            underWay.put(work, pass);
            return new Call(
                    Direction.FORWARD,
                    work.stage(),
                    work.microBatch(),
                    pass,
                    leavesPass(Direction.FORWARD) ? place(work) : 0);
        }
        Work forward = new Work(Direction.FORWARD, work.stage(), work.microBatch());
        int pass = Checks.given("pass", underWay.remove(forward));
        return new Call(Direction.BACKWARD, work.stage(), work.microBatch(), pass, place(work));
    }

    /** Returns whether the pass of a call may begin anew after it; the result then lies in a place. */
    private boolean leavesPass(Direction direction) {
        return direction == Direction.BACKWARD || !trains;
    }

    /** Returns the place of the result; 0 where no rank needs it. */
    private int place(Work work) {
        if (times.target(work) == null) {
            return 0;
        }
        int place = take(busyPlaces);
        places = Math.max(places, place + 1);
        return place;
    }

    private static int take(BitSet busy) {
        int free = busy.nextClearBit(0);
        busy.set(free);
        return free;
    }

    /** Records the transfer of the result, and its time. */
    private void finished(Work work, Call call) {
        if (leavesPass(work.direction())) {
            busyPasses.clear(call.pass());
        }
        Work target = times.target(work);
        if (target != null) {
            Transfer transfer = new Transfer(End.SENDER, times.rank(target), call);
            waiting.computeIfAbsent(times.of(target), time -> new TreeMap<>()).put(times.index(work), transfer);
        }
    }

    /** Adds the exchanges of the times before {@code time}, between this rank's calls. */
    private void sendBefore(int time) {
        while (!waiting.isEmpty() && waiting.firstKey() < time) {
            TreeMap<Integer, Transfer> sent = waiting.pollFirstEntry().getValue();
            release(sent);
            add(sent);
        }
    }

    /** Adds the exchange of the time at which {@code work} is computed. */
    private void exchange(int time, Work work, Call call) {
        TreeMap<Integer, Transfer> transfers = waiting.remove(time);
        Work source = times.source(work);
        if (source != null) {
            transfers = transfers == null ? new TreeMap<>() : transfers;
            transfers.put(times.index(source), new Transfer(End.RECEIVER, times.rank(source), call));
        }
        if (transfers != null) {
            add(transfers);
        }
    }

    private void add(Map<Integer, Transfer> transfers) {
        steps.add(new Exchange(List.copyOf(transfers.values())));
    }

    /** Sent results may be overwritten by later calls. */
    private void release(@Nullable Map<Integer, Transfer> sent) {
        if (sent == null) {
            return;
        }
        for (Transfer transfer : sent.values()) {
            if (transfer.end() == End.SENDER && leavesPass(transfer.call().direction())) {
                busyPlaces.clear(transfer.call().place());
            }
        }
    }

    List<Step> steps() {
        return List.copyOf(steps);
    }

    int passes() {
        return passes;
    }

    int places() {
        return places;
    }

    /**
     * A timetable of a pipeline in which every call takes the same time, and begins as early as its order and its input allow.
     *
     * <p>Transfers are placed by these times, on both ends before the call that needs them. So every rank makes its exchanges in the order of
     * time, and both ends of a transfer at the same time: ranks cannot deadlock, however long calls really take.
     */
    static final class PipelineTimes {
        private static final int NEVER = Integer.MAX_VALUE;

        private final List<List<Work>> orders;
        private final int ranks;
        private final int stages;
        private final int microBatches;
        /** By direction, stage and micro-batch. */
        private final int[] times;

        PipelineTimes(List<List<Work>> orders, int stages, int microBatches) {
            this.orders = orders;
            ranks = orders.size();
            this.stages = stages;
            this.microBatches = microBatches;
            times = new int[2 * stages * microBatches];
            Arrays.fill(times, NEVER);
            run();
        }

        private void run() {
            int[] next = new int[ranks];
            int left = orders.stream().mapToInt(List::size).sum();
            for (int time = 0; left > 0; time++) {
                int before = left;
                for (int rank = 0; rank < ranks; rank++) {
                    List<Work> order = orders.get(rank);
                    if (next[rank] < order.size() && isReady(order.get(next[rank]), time)) {
                        times[index(order.get(next[rank]++))] = time;
                        left--;
                    }
                }
                if (left == before) {
                    throw new IllegalStateException("the orders of the pipeline's ranks wait for each other");
                }
            }
        }

        private boolean isReady(Work work, int time) {
            Work source = source(work);
            return source == null || times[index(source)] < time;
        }

        /** Returns the work of another rank whose result {@code work} needs, or null. */
        @Nullable
        Work source(Work work) {
            boolean forward = work.direction() == Direction.FORWARD;
            int stage = work.stage() + (forward ? -1 : 1);
            return stage < 0 || stage == stages ? null : new Work(work.direction(), stage, work.microBatch());
        }

        /** Returns the work of another rank that needs the result of {@code work}, or null. */
        @Nullable
        Work target(Work work) {
            boolean forward = work.direction() == Direction.FORWARD;
            int stage = work.stage() + (forward ? 1 : -1);
            return stage < 0 || stage == stages ? null : new Work(work.direction(), stage, work.microBatch());
        }

        /** Returns when {@code work} is computed. */
        int of(Work work) {
            return times[index(work)];
        }

        /** Returns a unique number of {@code work}, by which both ends order transfers. */
        int index(Work work) {
            int direction = work.direction() == Direction.FORWARD ? 0 : 1;
            return (direction * stages + work.stage()) * microBatches + work.microBatch();
        }

        List<Work> order(int rank) {
            return orders.get(rank);
        }

        int rank(Work work) {
            return work.stage() % ranks;
        }
    }
}
