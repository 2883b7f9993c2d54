package dev.chagres.trainer;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.jr.ob.JSON;
import dev.chagres.launch.RankVariables;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.net.ConnectException;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Training as several processes, computing on the reference. */
@Tag("L0")
@Timeout(1200)
class LaunchTest {
    @TempDir
    private Path folder;

    private final List<Process> started = new ArrayList<>();

    @AfterEach
    void endAll() {
        for (Process process : started) {
            process.descendants().forEach(ProcessHandle::destroyForcibly);
            process.destroyForcibly();
        }
    }

    private Process start(Class<?> program, String... arguments) throws IOException {
        return start("", List.of(), program, arguments);
    }

    /** Output goes to files whose names end with {@code suffix}. */
    private Process start(String suffix, List<String> environment, Class<?> program, String... arguments)
            throws IOException {
        return start(suffix, environment, List.of("-Xmx512m"), program, arguments);
    }

    private Process start(
            String suffix, List<String> environment, List<String> options, Class<?> program, String... arguments)
            throws IOException {
        List<String> command = TrainJvm.command(environment, options, program, List.of(arguments));
        Process process = new ProcessBuilder(command)
                .redirectOutput(folder.resolve("out" + suffix).toFile())
                .redirectError(folder.resolve("err" + suffix).toFile())
                .start();
        started.add(process);
        return process;
    }

    private String text(String name) throws IOException {
        return Files.readString(folder.resolve(name), StandardCharsets.UTF_8);
    }

    private void awaitEnd(Process process, int status) throws Exception {
        assertTrue(process.waitFor(10, TimeUnit.MINUTES), "still runs");
        assertEquals(status, process.exitValue(), text("err"));
    }

    private static void awaitLines(Process process, Path file, int count) throws Exception {
        while (process.isAlive()
                && (!Files.exists(file) || Files.readAllLines(file).size() < count)) {
            Thread.sleep(20);
        }
    }

    private List<Object> steps(Path report) throws IOException {
        List<Object> values = new ArrayList<>();
        List<String> lines = Files.readAllLines(report);
        for (String line : lines.subList(1, lines.size())) {
            Map<String, Object> step = JSON.std.mapFrom(line);
            values.add(
                    List.of(step.get("step"), step.get("loss"), step.get("gradNorm"), step.get("tokens"), bytes(step)));
        }
        return values;
    }

    /** What each rank's collectives have moved. */
    private static List<?> bytes(Map<String, Object> step) {
        return ((List<?>) Objects.requireNonNull(step.get("byRank")))
                .stream().map(rank -> ((Map<?, ?>) rank).get("bytes")).toList();
    }

    private static List<Map<String, Object>> evaluations(Path report) throws IOException {
        List<Map<String, Object>> found = new ArrayList<>();
        for (String line : Files.readAllLines(report)) {
            Map<String, Object> one = JSON.std.mapFrom(line);
            if (one.remove("seconds") != null) {
                found.add(one);
            }
        }
        return found;
    }

    /** Each process decides by itself to end, and all do after the same step. */
    @Test
    void processesEvaluateAndStopEarlyAsThreadsDo() throws Exception {
        List<String> options = List.of(
                "--steps=9",
                "--context=64",
                "--tokens-per-step=512",
                "--eval-fraction=0.1",
                "--eval-every=2",
                "--early-stopping=1",
                "--min-delta=100");
        Path ofThreads = folder.resolve("threads.jsonl");
        Path ofProcesses = folder.resolve("processes.jsonl");
        List<String> processes = new ArrayList<>(List.of("--nproc=2", "--", "train", "--report=" + ofProcesses));
        processes.addAll(options);
        Process launched = start(
                "",
                List.of("CUDA_VISIBLE_DEVICES="),
                List.of("-Xmx512m", "-Dchagres.provider=auto"),
                Launch.class,
                processes.toArray(String[]::new));
        awaitEnd(launched, 0);
        assertTrue(text("out").contains("stopped early, after 4 steps: "), text("out"));
        List<String> told =
                text("err").lines().filter(line -> line.contains("provider ")).toList();
        assertEquals(1, told.size(), "of all ranks one tells the provider, " + told);
        List<String> threads = new ArrayList<>(List.of("--ranks=2", "--report=" + ofThreads));
        threads.addAll(options);
        awaitEnd(start(Train.class, threads.toArray(String[]::new)), 0);
        assertEquals(2, evaluations(ofThreads).size());
        assertEquals(evaluations(ofThreads), evaluations(ofProcesses));
    }

    /** Losses, norms, bytes by rank and the saved state are the same, to the bit, as those of ranks that are threads. */
    @ParameterizedTest
    @ValueSource(
            strings = {
                "2 --strategy ddp",
                "3 --strategy zero1 --tokens-per-step 3072",
                "2 --strategy zero2",
                "2 --strategy zero3",
                "2 --strategy tp --sequence-parallel",
                "2 --strategy cp --form nvidia",
                "2 --strategy pp --accumulate 3 --tokens-per-step 3072",
                "4 --strategy hsdp --mesh replicate=2,shard=2 --tokens-per-step 4096"
            })
    void processesTrainAsThreadsDo(String options) throws Exception {
        List<String> words = List.of(options.split(" "));
        String count = words.getFirst();
        List<String> threads = new ArrayList<>(words.subList(1, words.size()));
        threads.addAll(List.of("--steps", "5", "--seed", "11"));
        List<String> processes = new ArrayList<>(List.of("--nproc", count, "--", "train"));
        processes.addAll(threads);
        Path ofThreads = folder.resolve("threads.jsonl");
        Path ofProcesses = folder.resolve("processes.jsonl");
        Path saved = folder.resolve("saved.safetensors");
        Path savedByProcesses = folder.resolve("processes.safetensors");
        threads.addAll(List.of("--ranks", count, "--report", ofThreads.toString()));
        processes.addAll(List.of("--report", ofProcesses.toString()));
        threads.addAll(List.of("--save", saved.toString()));
        processes.addAll(List.of("--save", savedByProcesses.toString()));
        awaitEnd(start(Train.class, threads.toArray(String[]::new)), 0);
        awaitEnd(start(Launch.class, processes.toArray(String[]::new)), 0);
        assertEquals(5, steps(ofThreads).size());
        assertEquals(steps(ofThreads), steps(ofProcesses));
        assertEquals(-1, Files.mismatch(saved, savedByProcesses), "the first byte in which the saved states differ");
        assertEquals(
                1,
                text("out").lines().filter(line -> line.startsWith("report: ")).count(),
                text("out"));
    }

    @Test
    void aKilledRankEndsAllAndIsNamed() throws Exception {
        Path report = folder.resolve("r.jsonl");
        Process process = start(
                Launch.class,
                "--nproc",
                "3",
                "--",
                "train",
                "--tokens-per-step",
                "3072",
                "--steps",
                "100000",
                "--report",
                report.toString());
        awaitLines(process, folder.resolve("r.jsonl.part"), 4);
        List<ProcessHandle> ranks = process.descendants().toList();
        assertEquals(3, ranks.size());
        ranks.get(1).destroyForcibly();
        awaitEnd(process, 137);
        String told = text("err");
        var line = Pattern.compile("launch: rank (\\d) of 3 failed with exit status 137 \\(signal 9\\); the others end")
                .matcher(told);
        assertTrue(line.find(), told);
        // What the others throw: rank 0's is told, unless it was the one.
        assertTrue(told.contains("rank " + line.group(1) + " failed: its process has ended"), told);
        assertFalse(told.contains("\tat "), told);
        assertTrue(ranks.stream().noneMatch(ProcessHandle::isAlive));
    }

    /** The others wait for it and learn of nothing; after five seconds they are told to end. */
    @Test
    void aRankThatIsKilledBeforeItHasComeEndsAllSoon() throws Exception {
        Process process = start(Launch.class, "--nproc", "2", "--", "train", "--steps", "3");
        List<ProcessHandle> ranks = ranks(process, 2, List.of());
        long began = System.nanoTime();
        ranks.get(1).destroyForcibly();
        awaitEnd(process, 137);
        double seconds = (System.nanoTime() - began) / 1e9;
        assertTrue(seconds < 60, seconds + " s\n" + text("err")); // The ranks' own timeout is five minutes.
        assertTrue(ranks.stream().noneMatch(ProcessHandle::isAlive));
        assertTrue(text("err").contains("failed with exit status 137 (signal 9); the others end"), text("err"));
    }

    private static void awaitFile(Process process, Path file) throws Exception {
        while (process.isAlive() && !Files.exists(file)) {
            Thread.sleep(5);
        }
    }

    /** Waits for so many ranks, none of which is in {@code before}, until each runs Java. */
    private static List<ProcessHandle> ranks(Process process, int count, List<ProcessHandle> before) throws Exception {
        List<ProcessHandle> ranks = List.of();
        while (process.isAlive() && ranks.size() < count) {
            Thread.sleep(5);
            ranks = process.children().filter(one -> !before.contains(one)).toList();
        }
        for (ProcessHandle rank : ranks) {
            var _ = variables(rank);
        }
        return ranks;
    }

    /** Returns the environment of a rank, which a process gets when it runs Java. */
    private static Map<String, String> variables(ProcessHandle rank) throws Exception {
        Map<String, String> all = variablesNow(rank);
        while (rank.isAlive() && !all.containsKey("CHAGRES_RESTART_COUNT")) {
            Thread.sleep(5);
            all = variablesNow(rank);
        }
        return all;
    }

    private static Map<String, String> variablesNow(ProcessHandle rank) throws IOException {
        Map<String, String> all = new LinkedHashMap<>();
        for (String one : Files.readString(Path.of("/proc", Long.toString(rank.pid()), "environ"))
                .split("\0")) {
            int end = one.indexOf('=');
            if (end > 0) {
                all.put(one.substring(0, end), one.substring(end + 1));
            }
        }
        return all;
    }

    /** After the failure of a process all start again and go on from what was saved, to the weights of a run without a failure. */
    @Test
    void ranksThatStartAgainGoOn() throws Exception {
        String[] training = {"train", "--strategy", "zero1", "--steps", "30", "--seed", "11", "--save-every", "5"};
        Path whole = folder.resolve("whole.safetensors");
        List<String> arguments = new ArrayList<>(List.of("--nproc", "2", "--"));
        arguments.addAll(List.of(training));
        arguments.addAll(List.of("--save", whole.toString()));
        awaitEnd(start(Launch.class, arguments.toArray(String[]::new)), 0);
        Path saved = folder.resolve("saved.safetensors");
        arguments = new ArrayList<>(List.of("--nproc", "2", "--max-restarts", "3", "--"));
        arguments.addAll(List.of(training));
        arguments.addAll(List.of("--save", saved.toString(), "--resume-saved"));
        Process process = start(Launch.class, arguments.toArray(String[]::new));
        awaitFile(process, saved);
        process.children().toList().getLast().destroyForcibly();
        awaitEnd(process, 0);
        assertTrue(text("err").contains("launch: all 2 ranks start again in 1 s, restart 1 of 3\n"), text("err"));
        assertFalse(text("err").contains("restart 2"), text("err"));
        assertTrue(
                Pattern.compile("resuming \\S+ after \\d+ steps and ")
                        .matcher(text("out"))
                        .find(),
                text("out"));
        assertEquals(-1, Files.mismatch(whole, saved), "the first byte in which the saved states differ");
    }

    /** Each start has a store and a secret of its own; the last failure ends the run with its status. */
    @Test
    void ranksStartAgainNoMoreOftenThanToldTo() throws Exception {
        Process process =
                start(Launch.class, "--nproc", "2", "--max-restarts", "1", "--", "train", "--steps", "100000");
        List<ProcessHandle> first = ranks(process, 2, List.of());
        Map<String, String> before = variables(first.getFirst());
        assertEquals("0", before.get("CHAGRES_RESTART_COUNT"));
        Instant failedAt = Instant.now();
        first.getFirst().destroyForcibly();
        first.getLast().destroyForcibly();
        List<ProcessHandle> second = ranks(process, 2, first);
        Duration pause = Duration.between(failedAt, Instant.now());
        assertTrue(pause.compareTo(Duration.ofSeconds(1)) >= 0, "started again after " + pause);
        assertTrue(first.stream().noneMatch(ProcessHandle::isAlive));
        for (ProcessHandle rank : second) {
            Map<String, String> after = variables(rank);
            assertEquals("1", after.get("CHAGRES_RESTART_COUNT"));
            assertEquals("2", after.get("CHAGRES_RANKS"));
            assertNotEquals(before.get("CHAGRES_STORE_SECRET"), after.get("CHAGRES_STORE_SECRET"));
        }
        second.forEach(ProcessHandle::destroyForcibly);
        awaitEnd(process, 137);
        List<String> told = text("err")
                .lines()
                .filter(line -> line.startsWith("launch: "))
                .map(line -> line.replaceFirst("rank \\d of", "rank R of"))
                .toList();
        String failed = "launch: rank R of 2 failed with exit status 137 (signal 9); the others end";
        assertEquals(List.of(failed, "launch: all 2 ranks start again in 1 s, restart 1 of 1", failed), told);
    }

    @Test
    void ctrlCInThePauseStartsNothing() throws Exception {
        Process process = start(
                Launch.class,
                "--nproc",
                "1",
                "--max-restarts",
                "5",
                "--",
                "train",
                "--strategy",
                "ddp",
                "--steps",
                "100000");
        List<ProcessHandle> first = ranks(process, 1, List.of());
        first.getFirst().destroyForcibly();
        while (process.isAlive() && !text("err").contains("start again in 1 s")) {
            Thread.sleep(5);
        }
        signal("INT", process);
        awaitEnd(process, 130);
        assertEquals(
                1, text("err").lines().filter(line -> line.contains("failed")).count(), text("err"));
    }

    /** The program asks for windows, and NCCL makes none. */
    @Test
    void theReportSaysWhatNcclMade() throws Exception {
        Path report = folder.resolve("r.jsonl");
        String[] arguments = {
            "--ranks",
            "2",
            "--strategy",
            "zero3",
            "--weight-gather",
            "copy-engine",
            "--gradient-reduction",
            "copy-engine",
            "--steps",
            "1",
            "--report",
            report.toString()
        };
        awaitEnd(start("", List.of("NCCL_WIN_ENABLE=0"), Train.class, arguments), 0);
        Map<String, Object> head = JSON.std.mapFrom(Files.readAllLines(report).getFirst());
        assertEquals("device", head.get("weightGather"));
        assertEquals("reduce-scatter", head.get("gradientReduction"));
        assertEquals("NCCL_WIN_ENABLE=0 is set", head.get("noWindows"));
        List<String> told =
                text("err").lines().filter(line -> line.contains("no windows")).toList();
        String none = ": NCCL made no windows, for NCCL_WIN_ENABLE=0 is set; ";
        assertEquals(
                List.of(
                        "weight gather" + none + "weights are gathered as with device",
                        "gradient reduction" + none + "gradients are reduced as with reduce-scatter"),
                told);
    }

    @Test
    void ctrlCStartsNothingAgain() throws Exception {
        Path report = folder.resolve("r.jsonl");
        Process process = start(
                Launch.class,
                "--nproc",
                "2",
                "--max-restarts",
                "5",
                "--",
                "train",
                "--steps",
                "100000",
                "--report",
                report.toString());
        awaitLines(process, folder.resolve("r.jsonl.part"), 4);
        signal("INT", process);
        awaitEnd(process, 130);
        assertFalse(text("err").contains("start again"), text("err"));
    }

    private static void signal(String name, Process process) throws Exception {
        assertEquals(
                0,
                new ProcessBuilder("kill", "-" + name, Long.toString(process.pid()))
                        .inheritIO()
                        .start()
                        .waitFor());
    }

    @Test
    void ctrlCEndsAllAfterTheSameStepWithTheReport() throws Exception {
        Path report = folder.resolve("r.jsonl");
        Process process =
                start(Launch.class, "--nproc", "2", "--", "train", "--steps", "100000", "--report", report.toString());
        awaitLines(process, folder.resolve("r.jsonl.part"), 4);
        List<ProcessHandle> ranks = process.descendants().toList();
        signal("INT", process);
        awaitEnd(process, 130);
        assertTrue(ranks.stream().noneMatch(ProcessHandle::isAlive));
        int steps = steps(report).size();
        assertTrue(steps >= 3);
        assertTrue(text("out").contains("stopped after " + steps + " of 100,000 steps"), text("out") + text("err"));
        assertFalse(text("err").contains("failed"), text("err"));
    }

    /** The ranks look five times a second, and give a step one more to end; a machine that does much else takes longer. */
    @Test
    void ranksEndWhenTheirLauncherIsKilled() throws Exception {
        Path report = folder.resolve("r.jsonl");
        Process process =
                start(Launch.class, "--nproc", "2", "--", "train", "--steps", "100000", "--report", report.toString());
        awaitLines(process, folder.resolve("r.jsonl.part"), 3);
        List<ProcessHandle> ranks = process.descendants().toList();
        assertEquals(2, ranks.size(), text("err"));
        long began = System.nanoTime();
        process.destroyForcibly();
        for (ProcessHandle rank : ranks) {
            while (rank.isAlive()) {
                double seconds = (System.nanoTime() - began) / 1e9;
                assertTrue(seconds < 300, rank + " lives on after " + seconds + " s");
                Thread.sleep(10);
            }
        }
    }

    private static void refused(String expected, String... arguments) {
        var err = new ByteArrayOutputStream();
        int status = Launch.run(System.out, new PrintStream(err, true, StandardCharsets.UTF_8), arguments);
        assertEquals(2, status);
        assertEquals(
                "launch: " + expected + " (launch --help lists the options)",
                err.toString(StandardCharsets.UTF_8).strip());
    }

    @Test
    void wrongOptionsAreRefused() {
        refused("--nproc: expected at least 1, got 0", "--nproc", "0", "--", "train");
        refused("--max-restarts: expected at least 0, got -1", "--nproc", "2", "--max-restarts", "-1", "--", "train");
        refused("PROGRAM: expected train, got sing", "--nproc", "2", "--", "sing");
        refused("PROGRAM: expected train, got sing", "--nproc", "2", "sing", "--steps", "3");
        refused("Missing required option: '--nproc=N'", "train");
        refused("Unknown option: '--nprocs'; did you mean --nproc?", "--nprocs", "2", "--", "train");
    }

    private static void refusedForAll(String expected, String... arguments) {
        var err = new ByteArrayOutputStream();
        assertEquals(2, Launch.run(System.out, new PrintStream(err, true, StandardCharsets.UTF_8), arguments));
        String command = expected.startsWith("--nproc") ? "launch" : "train";
        assertEquals(
                command + ": " + expected + " (" + command + " --help lists the options)",
                err.toString(StandardCharsets.UTF_8).strip());
    }

    /** Before a process is started, with or without the two hyphens before the program. */
    @Test
    void optionsThatDoNotFitAreToldOnce() {
        refusedForAll(
                "--ranks: expected 2, as many as there are processes, or none, got 3",
                "--nproc",
                "2",
                "--",
                "train",
                "--ranks",
                "3");
        refusedForAll(
                "--nproc: expected 4, as many as --mesh tensor=4 has, got 2",
                "--nproc",
                "2",
                "train",
                "--mesh",
                "tensor=4");
        refusedForAll(
                "--nproc: expected an even number of at least 4 beside --strategy hsdp, for two copies of the model,"
                        + " sharded among half of the ranks each, or --mesh replicate=R,shard=S, got 3",
                "--nproc",
                "3",
                "train",
                "--strategy",
                "hsdp");
        refusedForAll(
                "Unknown options: '--stepz', '3'; did you mean --steps?", "--nproc", "2", "train", "--stepz", "3");
    }

    @Test
    void optionsThatDoNotFitSoManyRanksAreToldOnce() {
        DevicesNeeded.assume(8);
        refusedForAll(
                "--tokens-per-step: expected a multiple of 128 from 8192 on, for 8 micro-batches share it (--nproc 8),"
                        + " each with a multiple of 16 tokens and room for a sequence of --context 1024; got 2048;"
                        + " give --tokens-per-step 8192, or lower --context or --nproc",
                "--nproc",
                "8",
                "train",
                "--tokens-per-step",
                "2048");
        refusedForAll(
                "--nproc: expected 1 to 8, for each rank needs a device of its own and the CPU reference has 8, got 1000000000;"
                        + " the variable CHAGRES_REFERENCE_DEVICES=1000000000 gives it more",
                "--nproc",
                "1000000000",
                "train");
    }

    private static List<String> rank(int rank, RankVariables variables) {
        return variables.of(rank).entrySet().stream()
                .map(one -> one.getKey() + "=" + one.getValue())
                .toList();
    }

    /** What differs is named, and nothing else. */
    @Test
    void processesWithOtherOptionsAreToldWhich() throws Exception {
        try (RankVariables variables = RankVariables.ofThisHost(2)) {
            Process first = start("0", rank(0, variables), Train.class, "--steps", "3", "--seed", "1");
            Process second = start("1", rank(1, variables), Train.class, "--steps", "3", "--seed", "2");
            assertTrue(first.waitFor(10, TimeUnit.MINUTES) && second.waitFor(10, TimeUnit.MINUTES));
            assertEquals(1, first.exitValue(), text("err0"));
            assertEquals(1, second.exitValue(), text("err1"));
        }
        String expected = "rank 1 does something else than rank 0: expected \"--seed 1\", got \"--seed 2\"";
        assertTrue(text("err0").contains(expected), text("err0"));
        assertTrue(text("err1").contains(expected), text("err1"));
    }

    /** Returns a connection to the store of a rank, once it waits for others. */
    private static Socket connected(Process process, InetSocketAddress store) throws Exception {
        while (process.isAlive()) {
            try {
                return new Socket(store.getAddress(), store.getPort());
            } catch (ConnectException _) {
                Thread.sleep(5);
            }
        }
        throw new AssertionError("it has ended with status " + process.exitValue());
    }

    /** A rank that waits for others ends at once, and says so, whichever rank it is. */
    @ParameterizedTest
    @ValueSource(ints = {0, 1})
    void aRankThatWaitsForOthersEndsWhenItIsToldTo(int rank) throws Exception {
        try (RankVariables variables = RankVariables.ofThisHost(2);
                ServerSocket other = new ServerSocket()) {
            Map<String, String> own = variables.of(rank);
            var store = new InetSocketAddress(
                    own.get("CHAGRES_STORE_ADDRESS"), Integer.parseInt(own.get("CHAGRES_STORE_PORT")));
            if (rank == 1) {
                other.bind(store);
            }
            Process process = start("", rank(rank, variables), Train.class, "--steps", "3");
            try (Socket _ = rank == 0 ? connected(process, store) : other.accept()) {
                signal("TERM", process);
                awaitEnd(process, 143);
            }
        }
        assertTrue(
                text("err").contains("train: the run was ended while this rank waited for the others to come"),
                text("err"));
    }
}
