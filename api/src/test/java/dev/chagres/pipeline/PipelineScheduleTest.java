package dev.chagres.pipeline;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.pass.PassObserver.Direction;
import dev.chagres.pipeline.PipelineOrders.Work;
import dev.chagres.pipeline.PipelineSchedule.Call;
import dev.chagres.pipeline.PipelineSchedule.End;
import dev.chagres.pipeline.PipelineSchedule.Exchange;
import dev.chagres.pipeline.PipelineSchedule.Step;
import dev.chagres.pipeline.PipelineSchedule.Transfer;
import dev.chagres.pipeline.PipelineSteps.PipelineTimes;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

@Tag("L0")
class PipelineScheduleTest {
    private static final int MOST_RANKS = 9;

    private static String letters(PipelineSchedule schedule, int rank) {
        StringBuilder text = new StringBuilder();
        for (Step step : schedule.of(rank)) {
            if (step instanceof Call call) {
                text.append(call.direction() == Direction.FORWARD ? " F" : " B");
                text.append(call.microBatch());
                text.append(schedule.stages() == schedule.ranks() ? "" : "/" + call.stage());
            }
        }
        return text.substring(1);
    }

    /** As the paper draws it. */
    @ParameterizedTest
    @CsvSource({
        "0, F0 F1 F2 F3 B0 F4 B1 F5 B2 B3 B4 B5",
        "1, F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 B4 B5",
        "2, F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 B5",
        "3, F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5"
    })
    void fourRanksHaveTheOrderOf1F1B(int rank, String expected) {
        assertEquals(expected, letters(PipelineSchedule.of(4, 1, 6), rank));
    }

    @ParameterizedTest
    @CsvSource({"0, F0 F1 B0 B1", "1, F0 F1 B0 B1", "2, F0 F1 B0 B1", "3, F0 B0 F1 B1"})
    void fewerMicroBatchesThanRanks(int rank, String expected) {
        assertEquals(expected, letters(PipelineSchedule.of(4, 1, 2), rank));
    }

    /** As the paper draws it, of two ranks with two stages each. */
    @ParameterizedTest
    @CsvSource({
        "0, F0/0 F1/0 F0/2 F1/2 F2/0 B0/2 F3/0 B1/2 F2/2 B0/0 F3/2 B1/0 B2/2 B3/2 B2/0 B3/0",
        "1, F0/1 F1/1 F0/3 B0/3 F1/3 B1/3 F2/1 B0/1 F3/1 B1/1 F2/3 B2/3 F3/3 B3/3 B2/1 B3/1"
    })
    void twoRanksWithTwoStagesEachAreInterleaved(int rank, String expected) {
        assertEquals(expected, letters(PipelineSchedule.of(2, 2, 4), rank));
    }

    /** A group that is not full leaves gaps. */
    @ParameterizedTest
    @CsvSource({"0, F0/0 F0/2 B0/2 B0/0", "1, F0/1 F0/3 B0/3 B0/1"})
    void aSingleMicroBatchIsInterleavedWithNothing(int rank, String expected) {
        assertEquals(expected, letters(PipelineSchedule.of(2, 2, 1), rank));
    }

    @Test
    void everyCallIsMadeOnceInAnOrderThatKeepsFewMicroBatchesUnderWay() {
        for (int ranks = 1; ranks < MOST_RANKS; ranks++) {
            for (int microBatches = 1; microBatches < 20; microBatches++) {
                PipelineSchedule schedule = PipelineSchedule.of(ranks, 1, microBatches);
                for (int rank = 0; rank < ranks; rank++) {
                    check(schedule, rank);
                    assertEquals(
                            Math.min(ranks - rank, microBatches), schedule.passes(rank), schedule + ", rank " + rank);
                }
            }
        }
    }

    @Test
    void interleavedCallsAreMadeOnce() {
        for (int ranks = 2; ranks < MOST_RANKS; ranks++) {
            for (int stages = 2; stages < 5; stages++) {
                for (int microBatches = 1; microBatches < 20; microBatches++) {
                    PipelineSchedule schedule = PipelineSchedule.of(ranks, stages, microBatches);
                    for (int rank = 0; rank < ranks; rank++) {
                        check(schedule, rank);
                    }
                    meet(schedule);
                }
            }
        }
    }

    /** The forward calls of training, in their order. */
    @ParameterizedTest
    @CsvSource({"4, 1, 2", "4, 1, 6", "2, 2, 4", "3, 2, 4", "2, 3, 1", "1, 1, 5"})
    void anEvaluationHasTheForwardCallsOfTraining(int ranks, int stagesPerRank, int microBatches) {
        PipelineSchedule training = PipelineSchedule.of(ranks, stagesPerRank, microBatches);
        PipelineSchedule evaluation = PipelineSchedule.evaluation(ranks, stagesPerRank, microBatches);
        for (int rank = 0; rank < ranks; rank++) {
            String forward = letters(training, rank).replaceAll("B\\d+(/\\d+)? ?", "");
            assertEquals(forward.strip(), letters(evaluation, rank));
        }
    }

    @ParameterizedTest
    @CsvSource({
        "0, F0/0 F1/0 F0/2 F1/2 F2/0 F3/0 F2/2 F3/2 F4/0 F4/2",
        "1, F0/1 F1/1 F0/3 F1/3 F2/1 F3/1 F2/3 F3/3 F4/1 F4/3"
    })
    void anEvaluationThroughTwoStagesARankIsInterleaved(int rank, String expected) {
        assertEquals(expected, letters(PipelineSchedule.evaluation(2, 2, 5), rank));
    }

    @Test
    void ranksThatWaitForEachOtherInEveryTransferOfAnEvaluationAllArrive() {
        for (int ranks = 1; ranks < MOST_RANKS; ranks++) {
            for (int stages = 1; stages < (ranks == 1 ? 2 : 5); stages++) {
                for (int microBatches = 1; microBatches < 20; microBatches++) {
                    PipelineSchedule schedule = PipelineSchedule.evaluation(ranks, stages, microBatches);
                    for (int rank = 0; rank < ranks; rank++) {
                        checkEvaluation(schedule, rank);
                    }
                    meet(schedule);
                }
            }
        }
    }

    /** Where all calls take the same time no rank waits but until its first one: M V calls, and P - 1 before those of the last rank. */
    @ParameterizedTest
    @CsvSource({"1, 1, 5", "4, 1, 2", "4, 1, 7", "2, 2, 4", "3, 2, 9", "4, 3, 8"})
    void ranksOfAnEvaluationWaitForTheirFirstInputAlone(int ranks, int stagesPerRank, int microBatches) {
        int stages = ranks * stagesPerRank;
        PipelineTimes times =
                new PipelineTimes(PipelineOrders.forward(ranks, stagesPerRank, microBatches), stages, microBatches);
        Work last = new Work(Direction.FORWARD, stages - 1, microBatches - 1);
        assertEquals(microBatches * stagesPerRank + ranks - 1, times.of(last) + 1);
    }

    /** One pass is enough, and a place for each rank that sends: an output is sent before the next one is computed. */
    private static void checkEvaluation(PipelineSchedule schedule, int rank) {
        Set<String> made = new HashSet<>();
        for (Step step : schedule.of(rank)) {
            if (step instanceof Call call) {
                assertEquals(Direction.FORWARD, call.direction());
                assertEquals(rank, call.stage() % schedule.ranks());
                assertEquals(0, call.pass());
                assertTrue(made.add(call.stage() + " " + call.microBatch()), "once");
            }
        }
        assertEquals(schedule.stages() / schedule.ranks() * schedule.microBatches(), made.size());
        assertEquals(1, schedule.passes(rank));
        assertEquals(rank == schedule.stages() - 1 ? 0 : 1, schedule.places(rank), schedule + ", rank " + rank);
    }

    private static void check(PipelineSchedule schedule, int rank) {
        Set<String> made = new HashSet<>();
        Map<Integer, Call> underWay = new HashMap<>();
        int perRank = schedule.stages() / schedule.ranks();
        for (Step step : schedule.of(rank)) {
            if (!(step instanceof Call call)) {
                continue;
            }
            assertEquals(rank, call.stage() % schedule.ranks());
            assertTrue(made.add(call.direction() + " " + call.stage() + " " + call.microBatch()), "once");
            if (call.direction() == Direction.FORWARD) {
                assertTrue(underWay.put(call.pass(), call) == null, "a pass has one micro-batch at a time");
            } else {
                Call forward = underWay.remove(call.pass());
                assertEquals(forward.stage(), call.stage());
                assertEquals(forward.microBatch(), call.microBatch());
            }
            assertTrue(underWay.size() <= schedule.passes(rank));
        }
        assertEquals(2 * perRank * schedule.microBatches(), made.size());
    }

    @Test
    void ranksThatWaitForEachOtherInEveryTransferAllArrive() {
        for (int ranks = 1; ranks < MOST_RANKS; ranks++) {
            for (int microBatches = 1; microBatches < 20; microBatches++) {
                meet(PipelineSchedule.of(ranks, 1, microBatches));
            }
        }
    }

    /** What travels from one rank to another, in this order. */
    private record Link(int from, int to) {}

    /**
     * Lets ranks go on only while all peers of their exchange stand at theirs, as threads do that wait on the host; and checks that each
     * call has its input and that nothing in a place is overwritten before it was sent.
     */
    private static void meet(PipelineSchedule schedule) {
        int ranks = schedule.ranks();
        int[] at = new int[ranks];
        List<Set<String>> has = new ArrayList<>();
        List<Map<Integer, String>> unsent = new ArrayList<>();
        for (int i = 0; i < ranks; i++) {
            has.add(new HashSet<>());
            unsent.add(new HashMap<>());
        }
        boolean moved = true;
        while (moved) {
            moved = false;
            for (int rank = 0; rank < ranks; rank++) {
                while (at[rank] < schedule.of(rank).size() && schedule.of(rank).get(at[rank]) instanceof Call call) {
                    compute(schedule, call, has.get(rank), unsent.get(rank));
                    at[rank]++;
                    moved = true;
                }
            }
            Set<Integer> together = together(schedule, at);
            if (!together.isEmpty()) {
                transfer(schedule, together, at, has, unsent);
                together.forEach(rank -> at[rank]++);
                moved = true;
            }
        }
        for (int rank = 0; rank < ranks; rank++) {
            assertEquals(schedule.of(rank).size(), at[rank], schedule + ": rank " + rank + " waits for ever");
            assertTrue(unsent.get(rank).isEmpty(), "everything is sent");
        }
    }

    private static void compute(PipelineSchedule schedule, Call call, Set<String> has, Map<Integer, String> unsent) {
        boolean forward = call.direction() == Direction.FORWARD;
        boolean hasSource = forward ? call.stage() > 0 : call.stage() < schedule.stages() - 1;
        String input = call.direction() + " " + call.stage() + " " + call.microBatch();
        assertTrue(!hasSource || has.remove(input), schedule + ": no input for " + input);
        boolean hasTarget = forward ? call.stage() < schedule.stages() - 1 : call.stage() > 0;
        if (hasTarget && isPlaced(schedule, call)) {
            assertTrue(unsent.put(call.place(), input) == null, schedule + ": " + input + " overwrites a result");
        }
    }

    /** Returns whether the result lies in a place: all but outputs in training, which are in their pass. */
    private static boolean isPlaced(PipelineSchedule schedule, Call call) {
        return call.direction() == Direction.BACKWARD || schedule.toString().endsWith("forward alone");
    }

    /** Returns ranks whose exchanges have all peers among them. */
    private static Set<Integer> together(PipelineSchedule schedule, int[] at) {
        Set<Integer> arrived = new HashSet<>();
        for (int rank = 0; rank < schedule.ranks(); rank++) {
            if (at[rank] < schedule.of(rank).size()) {
                arrived.add(rank);
            }
        }
        while (true) {
            Set<Integer> waiting = new HashSet<>();
            for (int rank : arrived) {
                for (Transfer transfer : exchange(schedule, rank, at).transfers()) {
                    if (!arrived.contains(transfer.peer()) || !meets(schedule, rank, transfer.peer(), at)) {
                        waiting.add(rank);
                    }
                }
            }
            if (waiting.isEmpty()) {
                return arrived;
            }
            arrived.removeAll(waiting);
        }
    }

    /** Returns whether what one rank's exchange has with another is what that one's has with it. */
    private static boolean meets(PipelineSchedule schedule, int rank, int peer, int[] at) {
        return links(schedule, rank, peer, at).equals(links(schedule, peer, rank, at));
    }

    private static List<Link> links(PipelineSchedule schedule, int rank, int peer, int[] at) {
        return exchange(schedule, rank, at).transfers().stream()
                .filter(transfer -> transfer.peer() == peer)
                .map(transfer -> transfer.end() == End.SENDER ? new Link(rank, peer) : new Link(peer, rank))
                .toList();
    }

    private static Exchange exchange(PipelineSchedule schedule, int rank, int[] at) {
        return (Exchange) schedule.of(rank).get(at[rank]);
    }

    private static void transfer(
            PipelineSchedule schedule,
            Set<Integer> together,
            int[] at,
            List<Set<String>> has,
            List<Map<Integer, String>> unsent) {
        Map<Link, Deque<Call>> sent = new HashMap<>();
        for (int rank : together) {
            for (Transfer transfer : exchange(schedule, rank, at).transfers()) {
                if (transfer.end() == End.SENDER) {
                    Link link = new Link(rank, transfer.peer());
                    sent.computeIfAbsent(link, key -> new ArrayDeque<>()).add(transfer.call());
                    if (isPlaced(schedule, transfer.call())) {
                        unsent.get(rank).remove(transfer.call().place());
                    }
                }
            }
        }
        for (int rank : together) {
            for (Transfer transfer : exchange(schedule, rank, at).transfers()) {
                if (transfer.end() == End.RECEIVER) {
                    Call from = sent.get(new Link(transfer.peer(), rank)).remove();
                    Call to = transfer.call();
                    assertEquals(to.direction(), from.direction());
                    assertEquals(to.microBatch(), from.microBatch());
                    assertEquals(to.stage(), from.stage() + (to.direction() == Direction.FORWARD ? 1 : -1));
                    has.get(rank).add(to.direction() + " " + to.stage() + " " + to.microBatch());
                }
            }
        }
        assertTrue(sent.values().stream().allMatch(Deque::isEmpty), "everything sent is received");
    }

    @Test
    void refusesRanksThatItHasNot() {
        PipelineSchedule schedule = PipelineSchedule.of(2, 1, 3);
        for (int rank : new int[] {-1, 2}) {
            for (Executable call : List.<Executable>of(
                    () -> schedule.of(rank), () -> schedule.passes(rank), () -> schedule.places(rank))) {
                assertEquals(
                        "rank: expected that of one of 2 ranks, counted from 0, got " + rank,
                        assertThrows(IndexOutOfBoundsException.class, call).getMessage());
            }
        }
    }

    @Test
    void refusesNumbersThatDoNotFit() {
        assertEquals(
                "ranks: expected at least 1, got 0",
                assertThrows(IllegalArgumentException.class, () -> PipelineSchedule.of(0, 1, 1))
                        .getMessage());
        assertEquals(
                "microBatches: expected at least 1, got 0",
                assertThrows(IllegalArgumentException.class, () -> PipelineSchedule.of(1, 1, 0))
                        .getMessage());
        assertEquals(
                "stagesPerRank: expected 1 on a single rank, got 2",
                assertThrows(IllegalArgumentException.class, () -> PipelineSchedule.of(1, 2, 2))
                        .getMessage());
        assertEquals(
                "stagesPerRank: expected 1 on a single rank, got 2",
                assertThrows(IllegalArgumentException.class, () -> PipelineSchedule.evaluation(1, 2, 2))
                        .getMessage());
        assertEquals(
                "microBatches: expected at least 1, got 0",
                assertThrows(IllegalArgumentException.class, () -> PipelineSchedule.evaluation(2, 1, 0))
                        .getMessage());
        assertEquals(
                "microBatches: expected at most 262144 through 4 stages, for an evaluation has at most 1048576 forward"
                        + " calls, got 262145",
                assertThrows(IllegalArgumentException.class, () -> PipelineSchedule.evaluation(2, 2, 262_145))
                        .getMessage());
    }

    @Test
    void aScheduleSaysWhatItIsOf() {
        assertEquals(
                "5 micro-batches through 3 stages on 3 ranks, 1F1B",
                PipelineSchedule.of(3, 1, 5).toString());
        assertEquals(
                "5 micro-batches through 6 stages on 3 ranks, interleaved",
                PipelineSchedule.of(3, 2, 5).toString());
        assertEquals(
                "5 micro-batches through 6 stages on 3 ranks, forward alone",
                PipelineSchedule.evaluation(3, 2, 5).toString());
    }
}
