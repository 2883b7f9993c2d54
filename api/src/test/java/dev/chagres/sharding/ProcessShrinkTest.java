package dev.chagres.sharding;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.DevicesNeeded;
import dev.chagres.launch.RankJvms;
import dev.chagres.launch.Ranks;
import dev.chagres.sharding.ShrinkTraining.Trained;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

/**
 * Data-parallel ranks that are processes and go on when others are killed or stopped, on the reference: as a run with that many ranks goes
 * on from the same state.
 */
@Tag("L0")
@Timeout(900)
class ProcessShrinkTest {
    /** Longer than a busy machine takes to begin processes, which is a part of it. */
    private static final String PATIENT = "600000";
    /** Passes in six seconds once a rank is silent. */
    private static final String IMPATIENT = "60000";

    @TempDir
    private Path folder;

    private RankJvms start(int count, String timeout, String victims) throws Exception {
        DevicesNeeded.assume(count);
        List<String> arguments = new ArrayList<>(List.of(file().toString(), timeout));
        arguments.addAll(List.of(victims.split(" ")));
        return new RankJvms(folder, count, ShrinkProgram.class, arguments.toArray(String[]::new));
    }

    private Path file() {
        return folder.resolve("left.safetensors");
    }

    /** Threads go on from the state from which the processes {@code left} went on. */
    private void check(RankJvms jvms, int... left) throws Exception {
        for (int rank : left) {
            jvms.awaitEnd(rank, 0);
        }
        int begun = Integer.parseInt(jvms.last(left[0]).split(" ")[0]);
        assertTrue(begun > 0, jvms.last(left[0]));
        List<String> expected = Ranks.local(left.length).run(rank -> {
            try (ShrinkTraining training = new ShrinkTraining(rank, DType.FLOAT32, List.of(), victim -> {})) {
                Trained trained = training.resume(file(), begun);
                return ShrinkProgram.text(trained);
            }
        });
        for (int rank = 0; rank < left.length; rank++) {
            assertEquals(expected.get(rank), jvms.last(left[rank]), "rank " + left[rank]);
        }
    }

    /** Rank 0 keeps the store; with it gone another one does. */
    @ParameterizedTest
    @CsvSource({
        "3, 1 3 AFTER_SOME_SUMS",
        "4, 0 3 AFTER_SOME_SUMS",
        "3, 2 4 AFTER_THE_SUMS 0 4 LAGS",
        "3, 0 2 BEFORE_THE_SUMS 2 5 AFTER_SOME_SUMS",
        "4, 0 3 BEFORE_THE_SUMS 1 3 BEFORE_THE_SUMS"
    })
    void whoIsLeftGoesOnAsARunWithThatManyRanks(int ranks, String victims) throws Exception {
        List<Integer> killed = new ArrayList<>();
        String[] words = victims.split(" ");
        for (int i = 0; i < words.length; i += 3) {
            if (!words[i + 2].equals("LAGS")) {
                killed.add(Integer.parseInt(words[i]));
            }
        }
        int[] left =
                IntStream.range(0, ranks).filter(rank -> !killed.contains(rank)).toArray();
        try (RankJvms jvms = start(ranks, PATIENT, victims)) {
            check(jvms, left);
        }
    }

    @ParameterizedTest
    @ValueSource(ints = {2, 0})
    void oneThatWasStoppedIsToldThatTheOthersWentOn(int stopped) throws Exception {
        int[] left = IntStream.range(0, 3).filter(rank -> rank != stopped).toArray();
        try (RankJvms jvms = start(3, IMPATIENT, stopped + " 3 SILENT")) {
            check(jvms, left);
            resume(jvms.process(stopped));
            jvms.awaitEnd(stopped, 3);
            String last = jvms.last(stopped);
            // Or rank 0 comes to its own store before it has read there what the others said before they ended.
            assertTrue(
                    last.startsWith("ranks [" + stopped + "] ") || last.contains("may have gone on without it"), last);
        }
    }

    /** It cannot know whether the other one, which has the lowest number, goes on. */
    @Test
    void oneOfTwoDoesNotGoOnWithoutRank0WhichIsSilent() throws Exception {
        try (RankJvms jvms = start(2, IMPATIENT, "0 3 SILENT")) {
            jvms.awaitEnd(1, 3);
            assertEquals(
                    "ranks [] rank 1 cannot go on: rank 0 neither came nor ended, and may go on without rank 1: expected more"
                            + " than half of the ranks that live, or half of them with rank 0; start again from a saved"
                            + " state",
                    jvms.last(1));
        }
    }

    private static void resume(Process process) throws Exception {
        Process kill = new ProcessBuilder("kill", "-CONT", Long.toString(process.pid())).start();
        assertEquals(0, kill.waitFor());
    }
}
