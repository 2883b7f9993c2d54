package dev.chagres.nccl;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.DevicesNeeded;
import dev.chagres.Graph;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.conformance.Allocation;
import dev.chagres.launch.Ranks;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.locks.LockSupport;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** What a rank has called last: in the program, in a file, and at what cost. */
@Tag("L0")
@Tag("L2")
@Timeout(60)
class FlightRecorderTest {
    private static final CommunicatorConfig STANDARD = CommunicatorConfig.standard();
    private static final String DIRECTORY = "chagres.collective.recorder.directory";
    private static final String CALLS = "chagres.collective.recorder.calls";

    @TempDir
    private Path folder;

    private static void withProperty(String name, String value, Runnable body) {
        System.setProperty(name, value);
        try {
            body.run();
        } finally {
            System.clearProperty(name);
        }
    }

    private static Communicator alone(Device device) {
        return Communicator.open(device, UniqueId.create(), 1, 0, STANDARD);
    }

    @Test
    void callsOfAllCommunicatorsAreKeptInTheirOrder() {
        DevicesNeeded.assume(2);
        Ranks.local(2).each(rank -> {
            Stream stream = rank.device().stream();
            Communicator communicator = rank.communicator();
            try (Communicator second = communicator.split(0, 1 - rank.index(), STANDARD.withName("second"));
                    Scope scope = rank.device().openScope()) {
                Tensor x = scope.tensor(DType.BFLOAT16, 6);
                x.zero(stream);
                communicator.allReduce(x, x, Reduction.MAX, stream);
                second.broadcast(x, x, 1, stream);
                Communicator.group(() -> {
                    if (rank.index() == 0) {
                        communicator.send(x, 1, stream);
                    } else {
                        communicator.receive(x, 0, stream);
                    }
                });
                communicator.synchronize(stream);
                // @start region="recorder"
                List<RecordedCall> calls = FlightRecorder.of(communicator).calls();
                RecordedCall last = calls.getLast(); // send of 6 BFLOAT16 to rank 1, call 1 of world
                // @end
                assertEquals(4, calls.size());
                assertEquals(Operation.SPLIT, calls.getFirst().operation());
                RecordedCall reduced = calls.get(1);
                assertEquals(
                        List.of("world", rank.index(), 2, 2L, Operation.ALL_REDUCE, 6L, DType.BFLOAT16, "MAX", -1),
                        List.of(
                                reduced.communicator(),
                                reduced.rank(),
                                reduced.ranks(),
                                reduced.sequence(),
                                reduced.operation(),
                                reduced.elements(),
                                reduced.dtype(),
                                String.valueOf(reduced.reduction()),
                                reduced.other()));
                assertEquals(stream.handle().address(), reduced.stream());
                RecordedCall broadcast = calls.get(2);
                assertEquals("second", broadcast.communicator());
                assertEquals(1 - rank.index(), broadcast.rank());
                assertEquals(1, broadcast.sequence());
                assertEquals(1, broadcast.other());
                assertNull(broadcast.reduction());
                assertEquals(rank.index() == 0 ? Operation.SEND : Operation.RECEIVE, last.operation());
                assertEquals(1 - rank.index(), last.other());
                assertEquals(
                        List.of(
                                "split, call 1 of world",
                                "allReduce of 6 BFLOAT16, MAX, call 2 of world",
                                "broadcast of 6 BFLOAT16 from rank 1, call 1 of second",
                                (rank.index() == 0
                                                ? "send of 6 BFLOAT16 to rank 1"
                                                : "receive of 6 BFLOAT16 from rank 0")
                                        + ", call 1 of world"),
                        calls.stream().map(RecordedCall::toString).toList());
                for (RecordedCall call : calls) {
                    assertFalse(call.captured());
                    assertNotNull(call.enqueued());
                    assertFalse(call.enqueued().isBefore(call.entered()));
                    if (call.operation() != Operation.SPLIT) {
                        assertNotNull(call.completed());
                        assertFalse(call.completed().isBefore(call.enqueued()));
                    }
                }
                assertEquals(rank.index(), FlightRecorder.of(second).rank());
            }
        });
    }

    @Test
    void onlyTheLastAreKept() {
        withProperty(CALLS, "4", () -> {
            try (Device device = Device.open();
                    Communicator communicator = alone(device);
                    Scope scope = device.openScope()) {
                Tensor x = scope.tensor(DType.FLOAT32, 9);
                x.zero(device.stream());
                for (int i = 1; i <= 9; i++) {
                    Tensor part = scope.view(x, 0, i);
                    communicator.allReduce(part, part, Reduction.SUM, device.stream());
                }
                FlightRecorder recorder = FlightRecorder.of(communicator);
                assertEquals(9, recorder.count());
                assertEquals(
                        List.of(6L, 7L, 8L, 9L),
                        recorder.calls().stream().map(RecordedCall::elements).toList());
                assertEquals("flight recorder of rank 0, 4 calls", recorder.toString());
            }
        });
        withProperty(CALLS, "0", () -> {
            try (Device device = Device.open();
                    Communicator communicator = alone(device);
                    Scope scope = device.openScope()) {
                Tensor x = scope.tensor(DType.FLOAT32, 1);
                communicator.allReduce(x, x, Reduction.SUM, device.stream());
                communicator.synchronize(device.stream());
                assertEquals(List.of(), FlightRecorder.of(communicator).calls());
            }
        });
        for (String wrong : List.of("-1", "1000001", "many")) {
            withProperty(CALLS, wrong, () -> {
                try (Device device = Device.open()) {
                    assertThrown(
                            IllegalArgumentException.class,
                            "-Dchagres.collective.recorder.calls: expected a number from 0 to 1000000, got \"" + wrong
                                    + '"',
                            () -> alone(device));
                }
            });
        }
    }

    /** On a GPU the end of a call is known when its stream was waited for. */
    @Test
    void aCallCompletesWithItsStream() {
        FlightRecorder recorder = new FlightRecorder(0, 8, false);
        var member = new FlightRecorder.Member("world", 0, 1);
        CurrentCall call = new CurrentCall();
        call.set(Operation.ALL_REDUCE, 3, DType.FLOAT32, Reduction.SUM, 0);
        recorder.enter(member, call, 1, 11, false);
        recorder.enqueued();
        recorder.enter(member, call, 2, 22, false);
        recorder.enqueued();
        recorder.enter(member, call, 3, 11, true);
        recorder.enqueued();
        recorder.enter(member, call, 4, 22, false);
        recorder.abandoned();
        assertEquals(List.of(), completed(recorder));
        recorder.completed(22);
        assertEquals(List.of(1L), completed(recorder));
        recorder.enter(member, call, 5, 11, false);
        recorder.enqueued();
        recorder.completed(11);
        assertEquals(List.of(0L, 1L, 4L), completed(recorder));
        assertNull(recorder.calls().get(3).enqueued());
        for (int i = 0; i < 20; i++) {
            recorder.enter(member, call, 6 + i, 11, false);
            recorder.enqueued();
            recorder.completed(11);
        }
        assertEquals(8, completed(recorder).size());
    }

    private static List<Long> completed(FlightRecorder recorder) {
        return recorder.calls().stream()
                .filter(call -> call.completed() != null)
                .map(RecordedCall::number)
                .toList();
    }

    @Test
    void aGraphIsKeptWhenItIsCapturedAndWhenItIsLaunched() {
        DevicesNeeded.assume(2);
        Ranks.local(2).each(rank -> {
            Stream stream = rank.device().stream();
            Communicator communicator = rank.communicator();
            try (Scope scope = rank.device().openScope()) {
                Tensor x = scope.tensor(DType.FLOAT32, 2);
                x.zero(stream);
                try (Graph graph = stream.capture(() -> communicator.allReduce(x, x, Reduction.SUM, stream))) {
                    graph.launch();
                    stream.synchronize();
                }
                List<RecordedCall> calls = FlightRecorder.of(communicator).calls();
                assertTrue(calls.get(0).captured());
                assertNull(calls.get(0).completed());
                assertEquals(Operation.LAUNCH, calls.get(1).operation());
                assertEquals(1, calls.get(1).elements());
            }
        });
    }

    @Test
    void itMakesNoGarbage() {
        FlightRecorder recorder = new FlightRecorder(0, 10_000, false);
        var member = new FlightRecorder.Member("world", 0, 1);
        CurrentCall call = new CurrentCall();
        Allocation.assertNone(
                "a recorded call",
                () -> {
                    call.set(Operation.ALL_REDUCE, 1, DType.FLOAT32, Reduction.SUM, 0);
                    recorder.enter(member, call, 1, 11, false);
                    recorder.enqueued();
                    recorder.completed(11);
                },
                10_000);
        assertEquals(10_000, recorder.calls().size());
    }

    @Test
    void aReaderSeesWholeCallsWhileTheyAreWritten() throws Exception {
        FlightRecorder recorder = new FlightRecorder(0, 64, false);
        AtomicBoolean stop = new AtomicBoolean();
        CountDownLatch begun = new CountDownLatch(1);
        Thread writer = Thread.ofPlatform().daemon().start(() -> {
            var member = new FlightRecorder.Member("world", 0, 1);
            CurrentCall call = new CurrentCall();
            for (long i = 0; !stop.get(); i++) {
                call.set(Operation.ALL_GATHER, i, DType.BYTE, null, 0);
                recorder.enter(member, call, i, i, false);
                begun.countDown();
            }
        });
        begun.await();
        for (int i = 0; i < 20_000; i++) {
            for (RecordedCall read : recorder.calls()) {
                assertEquals(read.number(), read.elements());
                assertEquals(read.number(), read.sequence());
                assertEquals(read.number(), read.stream());
            }
        }
        stop.set(true);
        writer.join();
    }

    private static List<Map<String, String>> read(Path file) throws IOException {
        List<Map<String, String>> objects = new ArrayList<>();
        for (String line : Files.readAllLines(file)) {
            Map<String, String> object = new LinkedHashMap<>();
            try (JsonParser json = new JsonFactory().createParser(line)) {
                assertEquals(JsonToken.START_OBJECT, json.nextToken());
                while (json.nextToken() != JsonToken.END_OBJECT) {
                    String name = json.currentName();
                    json.nextToken();
                    object.put(name, json.getText());
                }
                assertNull(json.nextToken());
            }
            objects.add(object);
        }
        return objects;
    }

    /** Time passes once both others are in the call to which rank 1 does not come. */
    private static RankFailedException failure(Duration timeout) {
        DevicesNeeded.assume(3);
        Communicator[] ranks = new Communicator[3];
        try (StoppedClock clock = new StoppedClock()) {
            return assertThrows(
                    RankFailedException.class,
                    () -> Ranks.local(3)
                            .withConfig(STANDARD.withTimeout(timeout))
                            .each(rank -> {
                                ranks[rank.index()] = rank.communicator();
                                Stream stream = rank.device().stream();
                                try (Scope scope = rank.device().openScope()) {
                                    Tensor x = scope.tensor(DType.INT32, 5);
                                    for (int i = 0; i < 3 - rank.index() % 2; i++) {
                                        rank.communicator().allReduce(x, x, Reduction.SUM, stream);
                                    }
                                    if (rank.index() == 1) {
                                        rank.communicator().synchronize(stream);
                                        awaitThirdCall(ranks[0]);
                                        awaitThirdCall(ranks[2]);
                                        clock.pass();
                                        while (rank.communicator().endpoint().failure() == null) {
                                            Thread.sleep(1);
                                        }
                                    }
                                }
                            }));
        }
    }

    private static void awaitThirdCall(Communicator communicator) throws InterruptedException {
        while (FlightRecorder.of(communicator).count() < 3
                || communicator.endpoint().calls.waitingForPeers() == 0) {
            Thread.sleep(1);
        }
    }

    @Test
    void aFailureWritesAFileForEachRankAndNamesThem() {
        Path directory = folder.resolve("calls");
        withProperty(DIRECTORY, directory.toString(), () -> {
            RankFailedException failure = failure(Duration.ofMillis(500));
            String text = String.valueOf(failure.getMessage());
            String expected =
                    "communicator \"world\", rank (0|2) of 3, in allReduce of 5 INT32, SUM waited 500 ms: rank 1 did not"
                            + " come";
            String written = "the calls before it: \\Q" + directory.resolve("rank-*.jsonl") + "\\E";
            String late = "its calls are still being written to \\Q" + directory + "\\E"; // by a busy machine
            assertTrue(text.matches(expected + "; (" + written + "|" + late + ")"), text);
            await(directory.resolve("rank-2.jsonl"));
            for (int rank = 0; rank < 3; rank++) {
                List<Map<String, String>> lines = readUnchecked(directory.resolve("rank-" + rank + ".jsonl"));
                assertEquals(Integer.toString(rank), lines.getFirst().get("rank"));
                assertTrue(lines.getFirst().get("failure").matches(expected), text);
                assertEquals(rank == 1 ? 3 : 4, lines.size());
                Map<String, String> last = lines.getLast();
                assertEquals(rank == 1 ? "2" : "3", last.get("sequence"));
                assertEquals("allReduce", last.get("operation"));
                assertEquals("5", last.get("elements"));
                assertEquals("INT32", last.get("dtype"));
                assertEquals("SUM", last.get("reduction"));
                assertEquals(rank != 1, "null".equals(last.get("enqueued")), last.toString());
            }
        });
    }

    private static void await(Path file) {
        while (!Files.exists(file)) {
            LockSupport.parkNanos(1_000_000);
        }
    }

    private static List<Map<String, String>> readUnchecked(Path file) {
        try {
            return read(file);
        } catch (IOException e) {
            throw new AssertionError(e);
        }
    }

    @Test
    void withoutADirectoryNothingIsWrittenAndOneThatCannotBeMadeIsNamed() throws IOException {
        assertTrue(failure(Duration.ofMillis(500)).getMessage().endsWith("rank 1 did not come"));
        Path file = Files.createFile(folder.resolve("file"));
        withProperty(DIRECTORY, file.toString(), () -> {
            String text = String.valueOf(failure(Duration.ofMillis(500)).getMessage());
            assertTrue(
                    text.endsWith("; its calls could not be written to -Dchagres.collective.recorder.directory=" + file
                            + ": java.nio.file.FileAlreadyExistsException: " + file),
                    text);
        });
    }

    @Test
    void itIsWrittenWhenTheProgramAsks() throws IOException {
        try (Device device = Device.open();
                Communicator communicator = alone(device);
                Scope scope = device.openScope()) {
            Tensor x = scope.tensor(DType.FLOAT32, 1);
            communicator.reduce(x, x, Reduction.AVERAGE, 0, device.stream());
            Path file = folder.resolve("mine.jsonl");
            FlightRecorder.of(communicator).write(file);
            List<Map<String, String>> lines = read(file);
            assertEquals("", lines.getFirst().get("failure"));
            assertEquals("0", lines.getLast().get("root"));
            Thread.currentThread().interrupt();
            FlightRecorder.of(communicator).write(file);
            assertTrue(Thread.interrupted());
            assertEquals(lines.subList(1, lines.size()), read(file).subList(1, lines.size()));
        }
    }

    @Test
    void itReplacesFilesAloneAndLeavesNothingWhereThatFails() throws Exception {
        Path real = Files.writeString(folder.resolve("real"), "before");
        Path link = Files.createSymbolicLink(folder.resolve("link"), real);
        Path pipe = folder.resolve("pipe");
        assertEquals(0, new ProcessBuilder("mkfifo", pipe.toString()).start().waitFor());
        try (Device device = Device.open();
                Communicator communicator = alone(device)) {
            FlightRecorder recorder = FlightRecorder.of(communicator);
            recorder.write(link);
            assertTrue(Files.isSymbolicLink(link));
            assertEquals("0", read(real).getFirst().get("rank"));
            String unfit = "expected a file or a new name, got a device or a pipe, which a file cannot replace";
            assertEquals(pipe + ": " + unfit, refusal(recorder, pipe));
            Path nothing = Files.createSymbolicLink(folder.resolve("null"), Path.of("/dev/null"));
            assertEquals(nothing + ": " + unfit, refusal(recorder, nothing));
            for (Path place : List.of(folder, Path.of("/"), Path.of(""))) {
                assertEquals(place + ": expected the name of a file to write, got a folder", refusal(recorder, place));
            }
            Path nowhere = folder.resolve("no/such/file");
            assertEquals(
                    nowhere + ": could not be written: no such folder: " + nowhere.getParent(),
                    refusal(recorder, nowhere));
            Path tooLong = folder.resolve("x".repeat(256));
            assertTrue(refusal(recorder, tooLong).startsWith(tooLong + ": could not be written: "));
        }
        try (var left = Files.list(folder)) {
            assertEquals(
                    List.of("link", "null", "pipe", "real"),
                    left.map(path -> path.getFileName().toString()).sorted().toList());
        }
    }

    private static String refusal(FlightRecorder recorder, Path file) {
        return String.valueOf(assertThrows(java.io.UncheckedIOException.class, () -> recorder.write(file))
                .getMessage());
    }
}
