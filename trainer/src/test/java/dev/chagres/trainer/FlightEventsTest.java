package dev.chagres.trainer;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.batch.BatchLayout;
import dev.chagres.batch.BatchShape;
import dev.chagres.models.data.FastaSource;
import dev.chagres.models.data.MaskedProteins;
import dev.chagres.models.data.ShuffledSequences;
import dev.chagres.models.esm.Esm2Config;
import java.nio.file.Path;
import java.util.List;
import java.util.stream.Collectors;
import jdk.jfr.Recording;
import jdk.jfr.consumer.RecordedEvent;
import jdk.jfr.consumer.RecordingFile;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** What a recording of JDK Flight Recorder has of a run. */
class FlightEventsTest {
    @TempDir
    private Path folder;

    @Test
    void tellOfStepsSavesCollectivesAndAllocations() throws Exception {
        DevicesNeeded.assume(2);
        Path file = folder.resolve("run.jfr");
        Path saved = folder.resolve("run.safetensors");
        try (Recording recording = new Recording()) {
            for (String name : List.of("Step", "Save", "Collective", "DeviceAllocation")) {
                recording.enable("dev.chagres." + name).withoutThreshold();
            }
            recording.start();
            Trainer.of(new Esm2Config(2, 32, 2, 64), new BatchShape(BatchLayout.PACKED, 256, 64, 2))
                    .withRanks(2)
                    .withSave(saved, 0)
                    .train(() -> new MaskedProteins(new ShuffledSequences(FastaSource.shipped(), 1, 1 << 20)), 3);
            recording.dump(file);
        }
        var events = RecordingFile.readAllEvents(file).stream()
                .collect(Collectors.groupingBy(event -> event.getEventType().getName()));
        List<RecordedEvent> steps = events.get("dev.chagres.Step");
        assertEquals(
                List.of(1, 2, 3),
                steps.stream().map(step -> step.getInt("step")).toList());
        assertTrue(
                steps.getFirst().getDouble("loss") > 2 && steps.getFirst().getLong("memory") > 1 << 20,
                steps.toString());
        assertTrue(steps.getFirst().getDouble("teraflops") > 0, steps.toString());
        List<RecordedEvent> saves = events.get("dev.chagres.Save");
        assertEquals(2, saves.size(), "one of each rank");
        assertEquals(saved.toString(), saves.getFirst().getString("target"));
        assertTrue(
                events.get("dev.chagres.Collective").stream()
                        .anyMatch(call -> call.getString("operation").equals("allReduce") && call.getLong("bytes") > 0),
                events.get("dev.chagres.Collective").toString());
        assertTrue(
                events.get("dev.chagres.DeviceAllocation").stream()
                        .anyMatch(one -> one.getLong("bytes") == (32L << 20) + 1024),
                "the workspace of products");
    }
}
