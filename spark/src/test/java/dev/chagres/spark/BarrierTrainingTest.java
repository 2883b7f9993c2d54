package dev.chagres.spark;

import static java.lang.foreign.ValueLayout.JAVA_FLOAT_UNALIGNED;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.io.SafetensorsFile;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;
import org.apache.spark.SparkException;
import org.apache.spark.TaskContext;
import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.util.CollectionAccumulator;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** A barrier stage of two executors against the same training in one process, on the reference. */
@Tag("L0")
@Timeout(180)
class BarrierTrainingTest {
    private static final BarrierConfig CONFIG = BarrierConfig.tiny();
    private static final List<List<String>> UNEQUAL = List.of(proteins(31, 1), proteins(9, 2));
    private static final Pattern SECRET = Pattern.compile("[0-9a-f]{64}");
    private static final String RESIDUES = "LAGVSERTIDPKQNFYMHWC";

    private static LocalCluster cluster;

    @TempDir
    private static Path folder;

    @BeforeAll
    static void start() {
        cluster = new LocalCluster(2, 1);
    }

    @AfterAll
    static void stop() {
        cluster.close();
    }

    private static List<String> proteins(int count, long seed) {
        var random = new Random(seed);
        List<String> made = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            var one = new StringBuilder();
            for (int length = 20 + random.nextInt(150); length > 0; length--) {
                one.append(RESIDUES.charAt(random.nextInt(RESIDUES.length())));
            }
            made.add(one.toString());
        }
        return made;
    }

    private static void assertSame(OneProcess expected, TrainingReport actual) {
        assertArrayEquals(array(expected.losses()), array(actual.losses()), 1e-5);
        assertArrayEquals(array(expected.norms()), array(actual.gradNorms()), 1e-4);
    }

    private static double[] array(List<Double> numbers) {
        return numbers.stream().mapToDouble(Double::doubleValue).toArray();
    }

    @ParameterizedTest
    @EnumSource
    void lossesAreThoseOfOneProcessAndEachSequenceIsTakenOnce(ParallelStrategy strategy) {
        BarrierConfig config = CONFIG.withStrategy(strategy);
        CollectionAccumulator<String> taken = cluster.spark().sc().collectionAccumulator(strategy.toString());
        JavaRDD<String> sequences = cluster.partitions(UNEQUAL).map(sequence -> {
            taken.add(sequence);
            return sequence;
        });
        TrainingReport report = BarrierTraining.train(sequences, config);

        OneProcess expected = OneProcess.train(UNEQUAL, config);
        assertTrue(expected.losses().size() > 3, "few steps");
        assertSame(expected, report);
        assertEquals(
                List.of(31L, 9L),
                report.ranks().stream().map(RankReport::sequences).toList());
        assertEquals(40, report.sequences());
        assertEquals(
                2,
                new HashSet<>(report.ranks().stream().map(RankReport::executor).toList()).size());
        assertEquals(
                UNEQUAL.stream().flatMap(List::stream).sorted().toList(),
                taken.value().stream().sorted().toList());
    }

    @Test
    void aPartitionMayBeEmptyAndRank0Saves() throws Exception {
        List<List<String>> partitions = List.of(List.of(), proteins(12, 3));
        Path file = folder.resolve("weights.safetensors");
        TrainingReport report = BarrierTraining.train(cluster.partitions(partitions), CONFIG.withSave(file.toString()));
        OneProcess expected = OneProcess.train(partitions, CONFIG);
        assertSame(expected, report);
        try (SafetensorsFile saved = SafetensorsFile.open(file)) {
            for (Map.Entry<String, float[]> weight : expected.weights().entrySet()) {
                assertArrayEquals(
                        weight.getValue(),
                        saved.entry(weight.getKey()).bytes().toArray(JAVA_FLOAT_UNALIGNED),
                        1e-5f,
                        weight.getKey());
            }
        }
    }

    @Test
    void aTaskThatFailsEndsTheOthersAndTheStageIsRepeatedFromTheFirstWeights() {
        int before = cluster.failures().size();
        String ill = UNEQUAL.get(1).get(7);
        JavaRDD<String> sequences = cluster.partitions(UNEQUAL).map(sequence -> {
            if (sequence.equals(ill) && TaskContext.get().stageAttemptNumber() == 0) {
                throw new IllegalStateException("the disk is gone");
            }
            return sequence;
        });
        long began = System.nanoTime();
        TrainingReport report = BarrierTraining.train(sequences, CONFIG);
        assertTrue(System.nanoTime() - began < Duration.ofSeconds(90).toNanos());
        assertSame(OneProcess.train(UNEQUAL, CONFIG), report);
        List<String> failures =
                cluster.failures().subList(before, cluster.failures().size());
        assertTrue(
                failures.stream()
                        .anyMatch(text -> text.endsWith("RankFailedException: rank 1 of 2 failed:"
                                + " java.lang.IllegalStateException: the disk is gone")),
                failures.toString());
    }

    @Test
    void anExecutorThatDiesIsReplaced() {
        String last = UNEQUAL.get(0).get(20);
        JavaRDD<String> sequences = cluster.partitions(UNEQUAL).map(sequence -> {
            if (sequence.equals(last) && TaskContext.get().stageAttemptNumber() == 0) {
                Runtime.getRuntime().halt(9);
            }
            return sequence;
        });
        long began = System.nanoTime();
        TrainingReport report = BarrierTraining.train(sequences, CONFIG);
        assertTrue(System.nanoTime() - began < Duration.ofSeconds(120).toNanos());
        assertSame(OneProcess.train(UNEQUAL, CONFIG), report);
    }

    @Test
    void aTaskThatIsSilentIsNamedWhenTheTimeIsUp() {
        int before = cluster.failures().size();
        String slow = UNEQUAL.get(1).get(7);
        JavaRDD<String> sequences = cluster.partitions(UNEQUAL).map(sequence -> {
            if (sequence.equals(slow) && TaskContext.get().stageAttemptNumber() == 0) {
                TimeUnit.SECONDS.sleep(10);
            }
            return sequence;
        });
        assertSame(
                OneProcess.train(UNEQUAL, CONFIG),
                BarrierTraining.train(sequences, CONFIG.withTimeout(Duration.ofSeconds(5))));
        String first = cluster.failures().get(before);
        assertTrue(
                Pattern.compile(
                                "RankFailedException: .*rank 0 of 2, in allReduce of 1 INT64, SUM waited 5\\d{3} ms.* rank 1 ")
                        .matcher(first)
                        .find(),
                first);
    }

    @Test
    void aBadSequenceFailsTheJobWithItsPlace() throws Exception {
        List<List<String>> partitions = List.of(proteins(3, 4), List.of("MKV", "MK1V"));
        Exception failed =
                assertThrows(SparkException.class, () -> BarrierTraining.train(cluster.partitions(partitions), CONFIG));
        String text = String.valueOf(failed.getMessage());
        assertTrue(
                text.contains(
                        "partition 1, sequence 2: expected letters of ESM-2's vocabulary, got '1' at place 3 of 4"),
                text);
        assertFalse(SECRET.matcher(text).find(), text);
        String logs = cluster.logs();
        assertTrue(logs.contains("partition 1, sequence 2"), "the logs of the executors were not found");
        assertFalse(SECRET.matcher(logs).find(), "the secret of a run was logged");
    }

    @Test
    void fastaFilesAreReadBySpark() throws Exception {
        Path fasta = folder.resolve("a.fasta");
        Files.writeString(fasta, ">first one\nMKV\nlla*\n>second\r\nGG\r\nW\r\n\n>third\nACD");
        assertEquals(
                List.of("ACD", "GGW", "MKVLLA"),
                FastaRecords.read(cluster.spark(), fasta.toString()).collect().stream()
                        .sorted()
                        .toList());
        Files.writeString(fasta, ">first\nMKV\n>second\nM1\n");
        Exception failed = assertThrows(
                SparkException.class,
                () -> FastaRecords.read(cluster.spark(), fasta.toString()).collect());
        assertTrue(String.valueOf(failed.getMessage()).contains("a.fasta, record >second:2: "), failed.getMessage());
    }
}
