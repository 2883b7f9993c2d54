package dev.chagres.samples.train;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.jr.ob.JSON;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
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
@Timeout(240)
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
        List<String> command = TrainJvm.command(List.of(), List.of("-Xmx512m"), program, List.of(arguments));
        Process process = new ProcessBuilder(command)
                .redirectOutput(folder.resolve("out").toFile())
                .redirectError(folder.resolve("err").toFile())
                .start();
        started.add(process);
        return process;
    }

    private String text(String name) throws IOException {
        return Files.readString(folder.resolve(name), StandardCharsets.UTF_8);
    }

    private void awaitEnd(Process process, int status) throws Exception {
        assertTrue(process.waitFor(120, TimeUnit.SECONDS), "still runs");
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
            values.add(List.of(step.get("step"), step.get("loss"), step.get("gradNorm"), step.get("tokens")));
        }
        return values;
    }

    /** Losses, norms and the saved state have the same bits as those of ranks that are threads. */
    @ParameterizedTest
    @ValueSource(
            strings = {
                "2 --strategy ddp",
                "3 --strategy zero1 --tokens-per-step 3072",
                "2 --strategy zero2",
                "2 --strategy zero3",
                "2 --strategy tp --sequence-parallel",
                "2 --strategy cp",
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

    @Test
    void ctrlCEndsAllAfterTheSameStepWithTheReport() throws Exception {
        Path report = folder.resolve("r.jsonl");
        Process process =
                start(Launch.class, "--nproc", "2", "--", "train", "--steps", "100000", "--report", report.toString());
        awaitLines(process, folder.resolve("r.jsonl.part"), 4);
        List<ProcessHandle> ranks = process.descendants().toList();
        assertEquals(
                0,
                new ProcessBuilder("kill", "-INT", Long.toString(process.pid()))
                        .inheritIO()
                        .start()
                        .waitFor());
        awaitEnd(process, 130);
        assertTrue(ranks.stream().noneMatch(ProcessHandle::isAlive));
        int steps = steps(report).size();
        assertTrue(steps >= 3);
        assertTrue(text("out").contains("stopped after " + steps + " of 100000 steps"), text("out") + text("err"));
        assertFalse(text("err").contains("failed"), text("err"));
    }

    /** The ranks look five times a second, and give a step one more to end. */
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
                assertTrue(seconds < 3, rank + " lives on after " + seconds + " s");
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
        refused("PROGRAM: expected train, got sing", "--nproc", "2", "--", "sing");
        refused("Missing required option: '--nproc=N'", "train");
    }

    @Test
    void everyProcessIsToldOfOptionsThatDoNotFit() throws Exception {
        awaitEnd(start(Launch.class, "--nproc", "2", "--", "train", "--ranks", "3"), 2);
        assertTrue(
                text("err").contains("train: --ranks: expected 2, as many as there are processes, or none, got 3"),
                text("err"));
        assertTrue(text("err").contains("failed with exit status 2; the others end"), text("err"));
    }
}
