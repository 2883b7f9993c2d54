package dev.chagres.checkpoint;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.conformance.ChildJvm;
import dev.chagres.io.SafetensorsException;
import dev.chagres.launch.Ranks;
import dev.chagres.layer.Linear;
import dev.chagres.nccl.Communicator;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.sharding.FullySharded;
import dev.chagres.sharding.Strategy;
import dev.chagres.sharding.ZeroStage;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Where no more can be written, nothing is published, ranks say why and can go on. */
@Tag("L0")
class FullDiskTest {
    @TempDir
    private Path folder;

    /** Saves a small model, a larger one, and the small one again. */
    static final class Save {
        public static void main(String[] arguments) {
            for (int features : new int[] {8, 512, 8}) {
                Ranks.local(2).each(rank -> save(Path.of(arguments[0]), features, rank.communicator()));
            }
        }

        private static void save(Path folder, int features, Communicator ranks) {
            ModelPlan plan = new ModelPlan();
            new Linear(features, features, Initializer.zeros(), plan.group("layer"));
            try (Strategy strategy = FullySharded.allocate(plan, DType.FLOAT32, 1, ZeroStage.THREE, ranks)) {
                RunState.of(strategy).save(CheckpointFolder.of(folder), features, Map.of());
                System.out.println("published " + features);
            } catch (SafetensorsException refused) {
                System.out.println(refused.getMessage().replaceAll("step-.*part", "PART"));
            }
        }
    }

    @Test
    void theEarlierCheckpointStays() throws IOException, InterruptedException {
        List<String> command = new ArrayList<>(List.of("sh", "-c", "ulimit -f 512 && exec \"$0\" \"$@\""));
        command.addAll(ChildJvm.of(List.of("-XX:-UsePerfData"), Save.class, folder.toString())
                .command());
        Process process = new ProcessBuilder(command)
                .redirectError(ProcessBuilder.Redirect.INHERIT)
                .start();
        String output = new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
        assertEquals(0, process.waitFor(), output);
        List<String> lines = output.lines().toList();
        assertEquals(List.of("published 8", "published 8"), lines.subList(0, 2));
        assertEquals(List.of("published 8", "published 8"), lines.subList(4, 6));
        for (String line : lines.subList(2, 4)) {
            assertTrue(line.startsWith(folder + "/.PART: could not be written: File too large"), line);
        }
        try (Stream<Path> files = Files.list(folder)) {
            assertEquals(
                    List.of("latest", "step-00000008"),
                    files.map(file -> file.getFileName().toString()).sorted().toList());
        }
    }
}
