package dev.chagres.spark;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.Arrays;
import java.util.List;
import org.apache.spark.SparkException;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.function.Executable;

/** Which rank, host and device a task is, and what it refuses. */
@Tag("L0")
@Timeout(120)
class BarrierGroupTest {
    private static String refusal(Executable call) {
        return String.valueOf(assertThrows(IllegalArgumentException.class, call).getMessage());
    }

    @Test
    void hostsAreThoseOfAddresses() {
        assertEquals("10.0.0.7", BarrierGroup.host("10.0.0.7:40123"));
        assertEquals("gpu-3.example", BarrierGroup.host("gpu-3.example:40123"));
        assertEquals("fd00::7", BarrierGroup.host("[fd00::7]:40123"));
        assertEquals("gpu-3", BarrierGroup.host("gpu-3"));
    }

    @Test
    void theDeviceIsTheGpuOfTheTask() {
        assertEquals(3, BarrierGroup.device(List.of("3"), null));
        assertEquals(1, BarrierGroup.device(List.of("3"), "2, 3"));
        assertEquals(0, BarrierGroup.device(List.of("GPU-8a"), "GPU-8a"));
        assertEquals(
                "spark.task.resource.gpu.amount: expected 1, for each rank has one GPU, got 2 GPUs in a task: [0, 1]",
                refusal(() -> BarrierGroup.device(List.of("0", "1"), null)));
        assertEquals(
                "gpu: expected the number of a GPU, as nvidia-smi counts them, or one of CUDA_VISIBLE_DEVICES, got GPU-8a;"
                        + " see spark.executor.resource.gpu.discoveryScript",
                refusal(() -> BarrierGroup.device(List.of("GPU-8a"), null)));
    }

    @Test
    void sequencesThatAreNoneAreRefused() {
        var sequences =
                new PartitionSequences(Arrays.asList("MKV", "", null, "M\u0141").iterator(), 4, 1);
        assertTrue(sequences.advance());
        assertEquals("partition 4, sequence 2: expected at least one residue, got none", refusal(sequences::advance));
        assertEquals("partition 4, sequence 3: expected at least one residue, got null", refusal(sequences::advance));
        assertEquals(
                "partition 4, sequence 4: expected letters of ESM-2's vocabulary, got '\u0141' at place 2 of 2",
                refusal(sequences::advance));
    }

    @Test
    void twoRanksInAnExecutorAreRefused() {
        try (LocalCluster cluster = new LocalCluster(1, 2)) {
            Exception failed = assertThrows(
                    SparkException.class,
                    () -> BarrierTraining.train(
                            cluster.partitions(List.of(List.of("MKV"), List.of("MKV"))), BarrierConfig.tiny()));
            String text = String.valueOf(failed.getMessage());
            assertTrue(
                    text.contains("ranks 0 and 1 are in executor 0: expected an executor for each rank; let"
                            + " spark.executor.cores be spark.task.cpus, so that an executor has room for one task"),
                    text);
        }
    }
}
