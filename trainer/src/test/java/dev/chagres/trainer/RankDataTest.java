package dev.chagres.trainer;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.batch.Batch;
import dev.chagres.batch.BatchLayout;
import dev.chagres.batch.BatchShape;
import dev.chagres.batch.MicroBatch;
import dev.chagres.batch.PackingOrder;
import dev.chagres.batch.SequencePacker;
import dev.chagres.batch.StepResult;
import dev.chagres.launch.Rank;
import dev.chagres.launch.Ranks;
import dev.chagres.mesh.MeshShape;
import dev.chagres.models.data.EsmVocabulary;
import dev.chagres.models.data.FastaSource;
import dev.chagres.models.esm.Esm2Config;
import dev.chagres.models.esm.Esm2Size;
import dev.chagres.models.transformer.TransformerBody.Recomputation;
import dev.chagres.optim.LearningRateSchedule;
import dev.chagres.pass.ActivationOffload;
import dev.chagres.sharding.FullyShardedConfig;
import dev.chagres.sharding.ZeroStage;
import dev.chagres.trainer.RankLayout.CpCommType;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** What several ranks take of the data, and of memory, over many steps. */
@Tag("L0")
@Tag("L2")
@Timeout(120)
class RankDataTest {
    private static final int CONTEXT = 64;
    private static final Esm2Config CONFIG = new Esm2Config(2, 32, 4, CONTEXT);
    private static final String LETTERS = "LAGVSERTIDPKQNFYMHWC";
    private static final int SEQUENCES = 203;

    private static TrainingPlan plan(
            FastaSource source, MeshShape mesh, @Nullable FullyShardedConfig zero, int batches) {
        RankLayout layout =
                new RankLayout(mesh, zero, false, RankLayout.Places.THREADS, 1, CpCommType.A2A, DType.FLOAT32);
        return new TrainingPlan(
                TrainingPlan.Start.of(Esm2Size.TINY, TrainingPlan.ModelForm.NVIDIA),
                new TrainingData.Proteins(source),
                new BatchShape(BatchLayout.PACKED, 128 * batches, CONTEXT, batches),
                PackingOrder.AS_GIVEN,
                TrainingRecipe.FP32,
                Recomputation.ACTIVATION,
                ActivationOffload.none(),
                layout,
                ModelSetup.Enqueuing.STANDARD,
                1000,
                new LearningRateSchedule(1e-3f, 0, 1000, LearningRateSchedule.Decay.LINEAR, 0.1f),
                ModelSetup.ADAM,
                DType.FLOAT32,
                7,
                SavingPlan.NONE,
                null,
                null,
                EvaluationPlan.NONE,
                null);
    }

    private static SequencePacker packer(TrainingPlan plan) {
        return new SequencePacker(plan.shape(), plan.data().shuffled(plan.seed(), 1 << 20));
    }

    /** Sequences that begin with their own numbers in base 20. */
    private static FastaSource numbered() {
        Random random = new Random(5);
        StringBuilder text = new StringBuilder();
        for (int i = 0; i < SEQUENCES; i++) {
            text.append(">s").append(i).append('\n');
            int length = 3 + random.nextInt(CONTEXT - 5);
            for (int r = 0, number = i; r < length; r++, number /= 20) {
                text.append(LETTERS.charAt(r < 3 ? number % 20 : random.nextInt(20)));
            }
            text.append('\n');
        }
        return FastaSource.of("numbered.fasta", text.toString().getBytes(StandardCharsets.US_ASCII));
    }

    /** Returns the numbers of the sequences of a micro-batch; what is masked is told by its label. */
    private static List<Integer> numbers(MicroBatch batch) {
        List<Integer> numbers = new ArrayList<>();
        for (int sequence = 0; sequence < batch.realSequences(); sequence++) {
            int number = 0;
            for (int r = 2; r >= 0; r--) {
                int at = batch.cuSeqlens()[sequence] + 1 + r;
                int token = batch.labels()[at] == Batch.IGNORED ? batch.ids()[at] : batch.labels()[at];
                number = 20 * number
                        + IntStream.range(0, LETTERS.length())
                                .filter(i -> EsmVocabulary.residueToken((byte) LETTERS.charAt(i)) == token)
                                .findFirst()
                                .orElseThrow();
            }
            numbers.add(number);
        }
        return numbers;
    }

    /** Returns which sequences of each of two epochs a rank computes. */
    private static List<List<Integer>> computed(Rank rank, TrainingPlan plan) {
        RankLayout layout = plan.layout();
        List<List<Integer>> epochs = List.of(new ArrayList<>(), new ArrayList<>());
        Batch batch = new Batch(plan.shape());
        int taken = 0;
        RankModel made = RankModel.of(rank, plan.setup(CONFIG));
        try (RankShare share = RankShare.of(made, layout.dataRank(rank.index()), layout.dataRanks());
                SequencePacker packer = packer(plan)) {
            while (taken < 2 * SEQUENCES) {
                assertTrue(packer.fill(batch));
                for (int i = 0; i < batch.microBatches(); i++) {
                    for (int number : numbers(batch.microBatch(i))) {
                        if (share.own().test(i) && taken < 2 * SEQUENCES) {
                            epochs.get(taken / SEQUENCES).add(number);
                        }
                        taken++;
                    }
                }
            }
            return epochs;
        } finally {
            made.model().close();
        }
    }

    private static MeshShape mesh(int pipeline, int replicate, int shard, int context, int tensor) {
        MeshShape shape = RankedSteps.mesh(pipeline, replicate, shard, context, tensor);
        DevicesNeeded.assume(shape.ranks());
        return shape;
    }

    /** Ranks that split layers or stages have the same sequences; the others, together, each once. */
    @ParameterizedTest
    @CsvSource({"1, 3, 1, 1, 1, 3", "1, 2, 1, 1, 2, 4", "1, 1, 1, 2, 2, 2", "2, 2, 1, 1, 1, 4"})
    void eachSequenceComesOnceAnEpoch(
            int pipeline, int replicate, int shard, int context, int tensor, int microBatches) {
        TrainingPlan plan = plan(numbered(), mesh(pipeline, replicate, shard, context, tensor), null, microBatches);
        List<List<List<Integer>>> ofRanks = Ranks.local(plan.ranks()).run(rank -> computed(rank, plan));
        List<Integer> all = IntStream.range(0, SEQUENCES).boxed().toList();
        int same = plan.ranks() / plan.layout().dataRanks();
        for (int epoch = 0; epoch < 2; epoch++) {
            List<Integer> together = new ArrayList<>();
            for (int rank = 0; rank < plan.ranks(); rank++) {
                List<Integer> own = ofRanks.get(rank).get(epoch);
                assertTrue(own.size() > SEQUENCES / plan.layout().dataRanks() / 2, "rank " + rank + " has " + own);
                together.addAll(own);
            }
            assertEquals(
                    all.stream()
                            .flatMap(number -> IntStream.range(0, same).mapToObj(_ -> number))
                            .toList(),
                    together.stream().sorted().toList());
        }
    }

    /** Of the device and of the Java heap: after the first steps ranks take no more in 200 others. Once something else may take some. */
    @ParameterizedTest
    @CsvSource({"1, 2, 1, 1, 1", "1, 1, 2, 1, 1", "1, 1, 1, 2, 1", "1, 1, 1, 1, 2", "2, 1, 1, 1, 1"})
    void memoryStaysFlat(int pipeline, int replicate, int shard, int context, int tensor) {
        FullyShardedConfig zero = shard > 1 ? FullyShardedConfig.of(ZeroStage.THREE) : null;
        TrainingPlan plan =
                plan(FastaSource.shipped(), mesh(pipeline, replicate, shard, context, tensor), zero, 2 * shard);
        CyclicBarrier measuring = new CyclicBarrier(plan.ranks());
        Ranks.local(plan.ranks()).each(rank -> {
            StepResult result = new StepResult();
            Batch[] batches = new Batch[8];
            long memory = 0;
            List<Long> heap = new ArrayList<>();
            try (ModelTraining training = ModelTraining.of(rank, plan.setup(CONFIG));
                    SequencePacker packer = packer(plan)) {
                for (int i = 0; i < batches.length; i++) {
                    batches[i] = new Batch(plan.shape());
                    assertTrue(packer.fill(batches[i]));
                }
                for (int step = 0; step < 240; step++) {
                    training.upload(batches[step % batches.length]);
                    training.step(1e-4f);
                    training.result(result);
                    if (step % 100 == 39) {
                        memory = step == 39 ? training.memoryBytes() : memory;
                        heap.add(usedHeap(measuring));
                    }
                }
                assertEquals(memory, training.memoryBytes(), "rank " + rank.index() + " holds more of its device");
                long more = Math.min(heap.get(1) - heap.get(0), heap.get(2) - heap.get(1));
                assertTrue(more < 1 << 19, "the heap holds " + more + " bytes more after 100 steps");
            }
        });
    }

    /** No rank trains while one measures. */
    private static long usedHeap(CyclicBarrier measuring) throws Exception {
        measuring.await(60, TimeUnit.SECONDS);
        System.gc();
        Runtime runtime = Runtime.getRuntime();
        long used = runtime.totalMemory() - runtime.freeMemory();
        measuring.await(60, TimeUnit.SECONDS);
        return used;
    }
}
