package dev.chagres.sharding;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** Ranks that are processes, on the reference. */
@Tag("L0")
@Timeout(180)
class ProcessRanksTest {
    private static final String ENDLESS = "1000000000";
    private static final String NOBODY = "-1";
    private static final int KILLS = 10;

    @TempDir
    private Path folder;

    private final List<Process> processes = new ArrayList<>();

    @AfterEach
    void endAll() {
        processes.forEach(Process::destroyForcibly);
    }

    private Path out(int rank) {
        return folder.resolve("out" + rank);
    }

    private void start(int count, String... arguments) throws IOException {
        processes.clear();
        int port;
        try (ServerSocket free = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
            port = free.getLocalPort();
        }
        for (int rank = 0; rank < count; rank++) {
            List<String> command = new ArrayList<>(List.of(
                    Path.of(System.getProperty("java.home"), "bin", "java").toString()));
            String natives = System.getProperty("chagres.native.path");
            if (natives != null) {
                command.add("-Dchagres.native.path=" + natives);
            }
            command.addAll(List.of(
                    "--enable-native-access=ALL-UNNAMED",
                    "-Xmx128m",
                    "-XX:TieredStopAtLevel=1",
                    "-Dchagres.provider=reference",
                    "-cp",
                    System.getProperty("java.class.path"),
                    RankProgram.class.getName()));
            command.addAll(List.of(arguments));
            ProcessBuilder builder = new ProcessBuilder(command)
                    .redirectOutput(out(rank).toFile())
                    .redirectError(folder.resolve("err" + rank).toFile());
            builder.environment().put("CHAGRES_RANK", Integer.toString(rank));
            builder.environment().put("CHAGRES_RANKS", Integer.toString(count));
            builder.environment().put("CHAGRES_LOCAL_RANK", Integer.toString(rank));
            builder.environment().put("CHAGRES_STORE_PORT", Integer.toString(port));
            builder.environment().put("CHAGRES_STORE_SECRET", "a secret of this test alone");
            processes.add(builder.start());
        }
    }

    private String last(int rank) throws IOException {
        List<String> lines = Files.readAllLines(out(rank));
        return lines.isEmpty() ? Files.readString(folder.resolve("err" + rank)) : lines.getLast();
    }

    private void awaitBegin(int rank) throws Exception {
        while (processes.get(rank).isAlive() && !Files.readString(out(rank)).contains("begun")) {
            Thread.sleep(5);
        }
    }

    private void awaitEnd(int rank, int status) throws Exception {
        Process process = processes.get(rank);
        assertTrue(process.waitFor(60, TimeUnit.SECONDS), "rank " + rank + " has not ended");
        assertEquals(status, process.exitValue(), last(rank));
    }

    @Test
    void theySumAsThreadsDo() throws Exception {
        start(3, "20", NOBODY);
        for (int rank = 0; rank < 3; rank++) {
            awaitEnd(rank, 0);
            assertEquals("done 6.0", last(rank));
        }
    }

    @Test
    void aRankThatThrowsIsNamedWithWhatItThrew() throws Exception {
        for (int thrower : new int[] {0, 1}) {
            start(2, ENDLESS, Integer.toString(thrower));
            awaitEnd(thrower, 3);
            awaitEnd(1 - thrower, 3);
            assertEquals(
                    "ranks [" + thrower + "] rank " + thrower
                            + " (of 0 to 1) failed: java.lang.IllegalArgumentException: it is ill",
                    last(thrower));
            String call = "allReduce of 100000 FLOAT32, SUM";
            assertTrue(
                    last(1 - thrower)
                            .matches("ranks \\[" + thrower + "] communicator \"world\", rank " + (1 - thrower)
                                    + " of 2, (in " + call + " waited \\d+ ms|after " + call + "): rank " + thrower
                                    + " failed: java.lang.IllegalArgumentException: it is ill"),
                    last(1 - thrower));
        }
    }

    /**
     * A rank's process ends without a word at a random moment of the first tenth of a second of sums. The others' calls fail within
     * milliseconds; the limit has room for the ends of their JVMs on a busy machine.
     */
    @Test
    void aKilledRankIsNamedByAllWithinSeconds() throws Exception {
        long seed = Long.getLong("chagres.test.seed", new Random().nextLong());
        System.out.println("chagres.test.seed=" + seed);
        Random random = new Random(seed);
        Pattern named =
                Pattern.compile("ranks \\[(\\d)] communicator \"world\", rank \\d of 3, (?:in allReduce of 100000"
                        + " FLOAT32, SUM waited (\\d+) ms|after allReduce of 100000 FLOAT32, SUM): rank (\\d) failed: its process has"
                        + " ended");
        for (int kill = 0; kill < KILLS; kill++) {
            start(3, ENDLESS, NOBODY);
            int victim = random.nextInt(3);
            for (int rank = 0; rank < 3; rank++) {
                awaitBegin(rank);
            }
            TimeUnit.MICROSECONDS.sleep(random.nextInt(100_000));
            long began = System.nanoTime();
            processes.get(victim).destroyForcibly();
            for (int rank = 0; rank < 3; rank++) {
                if (rank == victim) {
                    continue;
                }
                awaitEnd(rank, 3);
                double seconds = (System.nanoTime() - began) / 1e9;
                Matcher text = named.matcher(last(rank));
                assertTrue(text.matches(), last(rank));
                assertEquals(Integer.toString(victim), text.group(1));
                assertEquals(Integer.toString(victim), text.group(3));
                assertTrue(seconds < 6, seconds + " s, " + last(rank));
            }
        }
    }
}
