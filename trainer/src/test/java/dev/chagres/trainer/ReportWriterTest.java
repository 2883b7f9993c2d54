package dev.chagres.trainer;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.jr.ob.JSON;
import dev.chagres.DType;
import dev.chagres.MultiprocessorMargin;
import dev.chagres.batch.Batch;
import dev.chagres.batch.BatchLayout;
import dev.chagres.batch.BatchShape;
import dev.chagres.batch.PackingOrder;
import dev.chagres.batch.SequencePacker;
import dev.chagres.batch.StepResult;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import dev.chagres.models.data.FastaSource;
import dev.chagres.models.data.MaskedProteins;
import dev.chagres.models.data.ShuffledSequences;
import dev.chagres.models.esm.Esm2Size;
import dev.chagres.models.transformer.TransformerBody.Recomputation;
import dev.chagres.ops.ProductPlan;
import dev.chagres.optim.LearningRateSchedule;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.QuantizerSite;
import dev.chagres.pass.ActivationOffload;
import dev.chagres.recipe.CastStatistics;
import dev.chagres.sharding.FullyShardedConfig;
import dev.chagres.sharding.GradientReduction;
import dev.chagres.sharding.WeightGather;
import dev.chagres.sharding.ZeroStage;
import dev.chagres.trainer.RankLayout.CpCommType;
import dev.chagres.trainer.command.BuildVersion;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

@Tag("L0")
class ReportWriterTest {
    private static final TrainingPlan PLAN = new TrainingPlan(
            TrainingPlan.Start.of(Esm2Size.M8, TrainingPlan.ModelForm.NVIDIA),
            new TrainingData.Proteins(FastaSource.shipped()),
            new BatchShape(BatchLayout.PACKED, 512, 256),
            PackingOrder.AS_GIVEN,
            TrainingRecipe.BF16,
            Recomputation.ACTIVATION,
            ActivationOffload.none(),
            new RankOptions().layout(),
            ModelSetup.Enqueuing.STANDARD,
            100,
            new LearningRateSchedule(4e-4f, 7, 100, LearningRateSchedule.Decay.LINEAR, 0.1f),
            ModelSetup.ADAM,
            DType.FLOAT32,
            42,
            SavingPlan.NONE,
            null,
            null,
            EvaluationPlan.NONE,
            null);
    private static final RunText.RunDescription RUN = new RunText.RunDescription(
            "reference",
            "CPU \"quoted\"",
            Map.of("te", "2.20.2", "cudnn", "9.19.0"),
            7_511_041,
            PLAN,
            EffectiveWindows.NOTHING_SHARDED);

    @TempDir
    private Path folder;

    private Path file;

    @BeforeEach
    void name() {
        file = folder.resolve("report.jsonl");
    }

    private static StepMetrics step(int number, double peakFlops) {
        return step(number, 4e-4f, 3.25, peakFlops);
    }

    private static StepMetrics step(int number, float learningRate, double loss, double peakFlops) {
        var batch = new Batch(PLAN.shape());
        try (var packer = new SequencePacker(
                PLAN.shape(), new MaskedProteins(new ShuffledSequences(FastaSource.shipped(), 1, 1 << 20)))) {
            packer.fill(batch);
        }
        var metrics = new StepMetrics();
        metrics.begin(number, batch, 1e9, learningRate);
        var result = new StepResult();
        result.set(loss, 1.5, 250);
        metrics.complete(result, peakFlops, 0.5, 1 << 20, List.of());
        return metrics;
    }

    @Test
    void marginsAndCopyEnginesStandInTheFirstLine() throws IOException {
        FullyShardedConfig zero = FullyShardedConfig.of(ZeroStage.THREE)
                .withWeightGather(WeightGather.COPY_ENGINE)
                .withGradientReduction(GradientReduction.COPY_ENGINE);
        RankLayout sharded = new RankLayout(
                MeshShape.ofOne().with(MeshDimension.SHARD, 2),
                zero,
                false,
                RankLayout.Places.THREADS,
                1,
                CpCommType.A2A,
                DType.FLOAT32);
        TrainingPlan plan = new TrainingPlan(
                PLAN.start(),
                PLAN.data(),
                PLAN.shape(),
                PLAN.order(),
                PLAN.recipe(),
                Recomputation.LAYERS,
                ActivationOffload.none(),
                sharded,
                new ModelSetup.Enqueuing(
                        ProductPlan.FIRST, new MultiprocessorMargin(4, 16), ModelSetup.Steps.ENQUEUED, 0),
                PLAN.steps(),
                PLAN.schedule(),
                PLAN.optimizer(),
                PLAN.productGradients(),
                PLAN.seed(),
                PLAN.saving(),
                null,
                null,
                EvaluationPlan.NONE,
                null);
        try (var report = new ReportWriter(file)) {
            EffectiveWindows made = new EffectiveWindows(WeightGather.COPY_ENGINE, GradientReduction.COPY_ENGINE, null);
            report.begin(new RunText.RunDescription("reference", "CPU", Map.of(), 1, plan, made));
            report.finish();
        }
        Map<String, Object> head = JSON.std.mapFrom(Files.readString(file));
        assertFalse(head.containsKey("noWindows"), head.toString());
        assertEquals(
                "zero3, weights gathered by copy engines, gradients reduced by copy engines", head.get("strategy"));
        assertEquals("copy-engine", head.get("weightGather"));
        assertEquals("copy-engine", head.get("gradientReduction"));
        assertEquals("layers", head.get("recompute"));
        assertEquals(4, head.get("smMargin"));
        assertEquals(16, head.get("productSmMargin"));
    }

    /** The options asked for windows. */
    @Test
    void whatNcclMadeStandsInTheFirstLine() throws IOException {
        EffectiveWindows made = new EffectiveWindows(
                WeightGather.DEVICE, GradientReduction.REDUCE_SCATTER, "ranks cannot reach each other's memory");
        try (var report = new ReportWriter(file)) {
            report.begin(new RunText.RunDescription("reference", "CPU", Map.of(), 1, PLAN, made));
            report.finish();
        }
        Map<String, Object> head = JSON.std.mapFrom(Files.readString(file));
        assertEquals("device", head.get("weightGather"));
        assertEquals("reduce-scatter", head.get("gradientReduction"));
        assertEquals("ranks cannot reach each other's memory", head.get("noWindows"));
    }

    @Test
    void measuredCastsStandInTheirStepsLine() throws IOException {
        ModelPlan plan = new ModelPlan();
        QuantizerSite site = plan.child("fc1").quantizer("input", QuantizerSite.Role.INPUT);
        try (var report = new ReportWriter(file)) {
            report.step(step(1, Double.NaN), List.of(new CastStatistics(site, 0, 3.5f, 0.25f, 0, 1e-4f, 64, 128)));
            report.finish();
        }
        String line = Files.readString(file);
        String casts = "\"casts\":[{\"site\":\"fc1.input\",\"role\":\"input\",\"amax\":3.5,\"underflows\":0.25,"
                + "\"overflows\":0.0,\"meanSquaredError\":1.0E-4,\"smallestScale\":64.0,\"largestScale\":128.0}]}";
        assertTrue(line.strip().endsWith(casts), line);
    }

    @Test
    void linesHoldExactlyTheNamedKeys() throws IOException {
        try (var report = new ReportWriter(file)) {
            report.begin(RUN);
            report.step(step(1, Double.NaN), List.of());
            report.step(step(2, 1e12), List.of());
            report.finish();
        }
        List<String> lines = Files.readAllLines(file);
        assertEquals(3, lines.size());
        Map<String, Object> head = JSON.std.mapFrom(lines.get(0));
        assertEquals(
                "[provider, device, libraries, model, form, parameters, seed, recipe, recompute, graph, steps, packing, context, tokensPerStep,"
                        + " accumulate, ranks, strategy, weightGather, gradientReduction, smMargin, productSmMargin, learningRate, fasta, version]",
                head.keySet().toString());
        assertEquals("CPU \"quoted\"", head.get("device"));
        assertEquals("{cudnn=9.19.0, te=2.20.2}", head.get("libraries").toString());
        assertEquals(7_511_041, head.get("parameters"));
        head.keySet().removeAll(List.of("provider", "device", "libraries", "parameters"));
        assertEquals(
                "[8M, nvidia, 42, bf16, activation, false, 100, on, 256, 512, 1, 1, null, null, null, 0, 0, 4.0E-4, uniprot.fasta.gz, "
                        + BuildVersion.text() + "]",
                String.valueOf(head.values()));
        Map<String, Object> first = JSON.std.mapFrom(lines.get(1));
        assertEquals(
                "[step, loss, tokens, paddedTokens, stepMillis, tokensPerSecond, gradNorm, learningRate, memoryBytes,"
                        + " teraflops, mfu, hfu]",
                first.keySet().toString());
        assertTrue(first.containsKey("mfu") && first.get("mfu") == null);
        assertEquals(1, first.get("step"));
        assertEquals(3.25, first.get("loss"));
        assertEquals(4e-4, first.get("learningRate"));
        assertEquals(250.0, first.get("stepMillis"));
        assertEquals(4.0 * (int) first.get("tokens"), first.get("tokensPerSecond"));
        assertEquals(0.004, (double) JSON.std.mapFrom(lines.get(2)).get("mfu"), 1e-12);
        assertEquals(0.006, (double) JSON.std.mapFrom(lines.get(2)).get("hfu"), 1e-12);
        assertEquals(0.004, (double) JSON.std.mapFrom(lines.get(2)).get("teraflops"), 1e-12);
    }

    @Test
    void numbersAreWrittenWithoutTheRoundingErrorsOfFloats() throws IOException {
        float rising = (float) (4e-3f * 7.0 / 10);
        assertEquals("0.0028000001", Float.toString(rising));
        try (var report = new ReportWriter(file)) {
            report.step(step(1, rising, 3.4802539f, Double.NaN), List.of());
            report.step(step(2, rising, 1.0 / 3, Double.NaN), List.of());
            report.finish();
        }
        List<String> lines = Files.readAllLines(file);
        assertEquals(2, lines.size());
        assertTrue(lines.getFirst().contains("\"learningRate\":0.0028,"), lines.getFirst());
        assertTrue(lines.getFirst().contains("\"loss\":3.480254,"), lines.getFirst());
        assertTrue(lines.getLast().contains("\"loss\":0.3333333333333333,"), lines.getLast());
    }

    @Test
    void aSkippedStepSaysSoAndHasNullForWhatIsNoNumber() throws IOException {
        try (var report = new ReportWriter(file)) {
            StepMetrics skipped = step(1, 4e-3f, Double.NaN, Double.NaN);
            skipped.skip();
            report.step(skipped, List.of());
            report.step(step(2, Double.NaN), List.of());
            report.finish();
        }
        List<String> lines = Files.readAllLines(file);
        Map<String, Object> first = JSON.std.mapFrom(lines.getFirst());
        assertTrue(first.containsKey("loss") && first.get("loss") == null, lines.getFirst());
        assertEquals(1.5, first.get("gradNorm"));
        assertEquals(true, first.get("skipped"));
        assertFalse(JSON.std.mapFrom(lines.getLast()).containsKey("skipped"));
    }

    @Test
    void theNameAppearsOnlyWhenTheReportIsWhole() throws IOException {
        Files.writeString(file, "an older report");
        Path part = folder.resolve("report.jsonl.part");
        try (var report = new ReportWriter(file)) {
            report.begin(RUN);
            assertEquals(1, Files.readAllLines(part).size());
            assertEquals("an older report", Files.readString(file));
        }
        assertEquals("an older report", Files.readString(file));
        assertTrue(Files.exists(part));
        try (var report = new ReportWriter(file)) {
            report.begin(RUN);
            report.finish();
        }
        assertFalse(Files.exists(part));
        assertEquals(1, Files.readAllLines(file).size());
    }

    @Test
    void discardLeavesNothing() throws IOException {
        try (var report = new ReportWriter(file)) {
            report.begin(RUN);
            report.discard();
        }
        try (var files = Files.list(folder)) {
            assertEquals(0, files.count());
        }
    }
}
