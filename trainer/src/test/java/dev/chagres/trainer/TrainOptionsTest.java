package dev.chagres.trainer;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.models.esm.Esm2Config;
import dev.chagres.models.transformer.TransformerBody.Recomputation;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import picocli.CommandLine;
import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;

@Tag("L0")
@Timeout(60)
class TrainOptionsTest {
    private final FakePlatform platform = new FakePlatform();
    private final ByteArrayOutputStream out = new ByteArrayOutputStream();
    private final ByteArrayOutputStream err = new ByteArrayOutputStream();

    /** A command with the options alone. */
    @Command
    private static final class Given {
        @Mixin
        private final TrainOptions options = new TrainOptions();
    }

    private int train(String... arguments) {
        return Train.run(
                () -> platform,
                new StandardOutput(out, StandardCharsets.UTF_8),
                new PrintStream(err, true, StandardCharsets.UTF_8),
                arguments);
    }

    private String out() {
        return out.toString(StandardCharsets.UTF_8);
    }

    private String err() {
        return err.toString(StandardCharsets.UTF_8);
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            value = {
                "--steps 0 | --steps: expected at least 1, got 0",
                "--steps many | Invalid value for option '--steps': expected a whole number no larger than 2147483647, got many",
                "--steps | Missing required parameter for option '--steps' (N)",
                "--model 9M | --model: expected one of tiny, 8M, 35M, 150M, 650M, 3B, 15B, or a folder, got 9M",
                "--form tanh | Invalid value for option '--form': expected one of published, nvidia, got tanh",
                "--form published --model /tmp | --form: expected none beside --model FOLDER, whose form it is, got published",
                "--packing yes | Invalid value for option '--packing': expected one of on, best-fit, off, got yes",
                "--recipe fp8 | Invalid value for option '--recipe': expected one of bf16, fp16, fp32, fp8-delayed, fp8-delayed-fast, fp8-current, fp8-block, got fp8",
                "--recompute all | Invalid value for option '--recompute': expected one of none, activation, norms, layers, got all",
                "--loss-tokens 9 | --loss-tokens: expected --text beside it, got none",
                "--loss-tokens -1 --text x.jsonl | --loss-tokens: expected at least 0, got -1",
                "--product-plans best | Invalid value for option '--product-plans': expected one of first, measured, got best",
                "--sm-margin -1 | --sm-margin: expected at least 0, got -1",
                "--sm-margin 132 | --sm-margin: expected 0 to 131, which leaves 1 of the device's 132 multiprocessors, got 132",
                "--product-sm-margin -1 | --product-sm-margin: expected at least 0, got -1",
                "--product-sm-margin 131 | --product-sm-margin: expected 0 to 130, which leaves 2 of the device's 132"
                        + " multiprocessors, got 131",
                "--graph yes | Invalid value for option '--graph': expected one of on, off, auto, got yes",
                "--fp8-statistics -1 | --fp8-statistics: expected at least 0, got -1",
                "--fp8-statistics 10 | --fp8-statistics: expected --recipe fp8-delayed, fp8-delayed-fast, fp8-current or"
                        + " fp8-block, whose casts are measured, got none",
                "--fp8-statistics 10 --recipe bf16 | --fp8-statistics: expected --recipe fp8-delayed, fp8-delayed-fast,"
                        + " fp8-current or fp8-block, whose casts are measured, got bf16",
                "--fp8-statistics 10 --recipe fp8-block | --fp8-statistics: expected --report, which they are written into,"
                        + " got none",
                "--provider gpu | Invalid value for option '--provider': expected one of auto, cuda, reference, got gpu",
                "--decay fast | Invalid value for option '--decay': expected one of constant, linear, cosine, got fast",
                "--optimizer adam | Invalid value for option '--optimizer': expected one of adamw, sgd, lion, adafactor, adamw8bit,"
                        + " lion8bit, muon, schedule-free, got adam",
                "--weight-decay -1 | --weight-decay: expected a number of at least 0, got -1.0",
                "--momentum 0.5 | --momentum: expected --optimizer sgd beside it, got adamw",
                "--momentum 1 --optimizer sgd | --momentum: expected a number from 0 to below 1, got 1.0",
                "--nesterov --optimizer lion | --nesterov: expected --optimizer sgd beside it, got lion",
                "--nesterov --optimizer sgd --momentum 0 | --nesterov: expected --momentum above 0, got 0",
                "--tokens-per-step 8 | --tokens-per-step: expected at least 16, got 8",
                "--tokens-per-step 2040 | --tokens-per-step: expected a positive multiple of 16, got 2040",
                "--tokens-per-step 512 | --tokens-per-step: expected at least the context, 1024, so that the longest"
                        + " sequence fits; got 512",
                "--ranks 0 | --ranks: expected at least 1, got 0",
                "--strategy zero2 | --strategy: expected ddp, or --ranks beside it, which says how many ranks there"
                        + " are, got zero2",
                "--strategy fsdp | Invalid value for option '--strategy': expected one of ddp, zero1, zero2, zero3, hsdp, tp, pp, cp, got fsdp; what PyTorch calls fsdp is zero3 here",
                "--mesh shard=x | Invalid value for option '--mesh': expected numbers of ranks, such as replicate=2,shard=4, got"
                        + " shard=x",
                "--mesh rows=2 | Invalid value for option '--mesh': expected pipeline, replicate, shard, context or tensor,"
                        + " each with a number of ranks, such as replicate=2,shard=4, got rows=2",
                "--mesh shard=2,shard=2 | Invalid value for option '--mesh': expected each dimension once, got shard a second"
                        + " time in shard=2,shard=2",
                "--mesh tensor=1,tensor=2 | Invalid value for option '--mesh': expected each dimension once, got tensor a"
                        + " second time in tensor=1,tensor=2",
                "--mesh shard=0 | Invalid value for option '--mesh': expected at least 1 along SHARD, got 0 in shard=0",
                "--mesh shard=65536,tensor=65536 | Invalid value for option '--mesh': expected at most 2147483647 ranks in"
                        + " all, got 65536 along TENSOR in shard=65536,tensor=65536",
                "--mesh tensor=3 | --mesh: expected as many ranks for tp as divide the 4 heads of --model tiny, got 3",
                "--mesh pipeline=3 | --mesh: expected at most as many stages for pp as --model tiny has layers, 2, got 3 on 3"
                        + " ranks",
                "--mesh shard | Invalid value for option '--mesh': expected numbers of ranks, such as replicate=2,shard=4, got"
                        + " shard",
                "--mesh replicate=2,shard=2 --ranks 2 | --ranks: expected 4, as many as --mesh replicate=2,shard=2 has, or"
                        + " none, got 2",
                "--mesh shard=2 --strategy ddp | --strategy: expected zero1, zero2 or zero3 beside --mesh shard=2,"
                        + " which shards the model, got ddp",
                "--mesh replicate=2,tensor=2 --strategy zero2 | --mesh: expected ranks along shard or context beside --strategy"
                        + " zero2, got replicate=2,tensor=2",
                "--mesh replicate=2,shard=2 --strategy tp | --mesh: expected ranks along tensor beside --strategy tp, got"
                        + " replicate=2,shard=2",
                "--ranks 2 --reshard after-step | --reshard: expected --strategy zero3 or hsdp beside it, whose ranks"
                        + " shard weights, got ddp",
                "--reshard after-forward | --reshard: expected --strategy zero3 or hsdp beside it, whose ranks shard"
                        + " weights, got one rank",
                "--ranks 2 --strategy zero2 --gradient-sync each-micro-batch | --gradient-sync: expected --strategy"
                        + " zero3 or hsdp beside it, whose ranks shard weights, got zero2",
                "--ranks 2 --strategy zero3 --reshard never | Invalid value for option '--reshard': expected one of"
                        + " after-forward, after-step, got never",
                "--ranks 2 --strategy zero3 --gradient-sync off | Invalid value for option '--gradient-sync': expected one of"
                        + " each-micro-batch, last-micro-batch, got off",
                "--mesh context=3,tensor=2 --sequence-parallel | --sequence-parallel: expected ranks for tp and cp together that"
                        + " divide 16, of which the tokens of a micro-batch are a multiple, got 6",
                "--ranks 2 --strategy pp --stages-per-rank 2147483647 --model 8M | --stages-per-rank: expected at most as many"
                        + " stages for pp as --model 8M has layers, 6, got 4294967294 on 2 ranks",
                "--ranks 3 --strategy pp --model tiny | --strategy: expected at most as many stages for pp as --model tiny has"
                        + " layers, 2, got 3 on 3 ranks",
                "--ranks 2 --strategy pp --stages-per-rank 4 --model 8M | --stages-per-rank: expected at most as many stages"
                        + " for pp as --model 8M has layers, 6, got 8 on 2 ranks",
                "--ranks 2 --strategy pp --recipe fp8-delayed --fp8-statistics 2 --report r | --fp8-statistics: expected another --strategy"
                        + " than pp beside it, for rank 0 has only some of the layers, got pp",
                "--ranks 2 --stages-per-rank 2 | --stages-per-rank: expected --strategy pp and several ranks along pipeline"
                        + " beside it, got ddp",
                "--ranks 1 --strategy pp --stages-per-rank 2 | --stages-per-rank: expected --strategy pp and several ranks along"
                        + " pipeline beside it, got one rank",
                "--ranks 2 --strategy pp --stages-per-rank 0 | --stages-per-rank: expected at least 1, got 0",
                "--strategy pp | --strategy: expected ddp, or --ranks beside it, which says how many ranks there are,"
                        + " got pp",
                "--mesh tensor=2 --shard-optimizer all-ranks | --shard-optimizer: expected ranks along shard in"
                        + " --mesh, which shard the optimizer's state, got tensor=2",
                "--ranks 2 --sequence-parallel | --sequence-parallel: expected --strategy tp or ranks along tensor beside it,"
                        + " which split layers, got ddp",
                "--ranks 1 --strategy tp --sequence-parallel | --sequence-parallel: expected --strategy tp or ranks along tensor"
                        + " beside it, which split layers, got one rank",
                "--ranks 3 --strategy tp --sequence-parallel | --sequence-parallel: expected ranks for tp that divide 16, of"
                        + " which the tokens of a micro-batch are a multiple, got 3",
                "--mesh tensor=4,context=2 --model 8M | --mesh: expected as many ranks for tp and cp together as divide the"
                        + " 20 heads of --model 8M, or --cp-comm-type p2p or all-gather, got 8",
                "--ranks 20 --strategy cp --model 8M | --strategy: expected at most 16 ranks for cp, for the smallest"
                        + " micro-batch has 16 tokens, got 20",
                "--mesh replicate=2,context=3 --model 8M | --mesh: expected as many ranks for cp as divide the 20 heads"
                        + " of --model 8M, or --cp-comm-type p2p or all-gather, got 3",
                "--reduce-dtype bf16 | --reduce-dtype: expected ranks that sum gradients, along replicate, shard or context, got one"
                        + " rank",
                "--recipe fp32 --gradient-dtype bf16 | --gradient-dtype: expected fp32 or the type of the weights, which is FLOAT32"
                        + " with --recipe fp32, got bf16",
                "--ranks 2 --gradient-dtype bf16 | --gradient-dtype: expected fp32 on 2 ranks, which sum gradients, got bf16; use"
                        + " --reduce-dtype",
                "--recipe bf16 --optimizer muon --gradient-dtype bf16 | --gradient-dtype: expected fp32 beside --optimizer muon, got"
                        + " bf16",
                "--ranks 2 --strategy tp --reduce-dtype bf16 | --reduce-dtype: expected ranks that sum gradients, along"
                        + " replicate, shard or context, got tp, gradients summed in BFLOAT16",
                "--ranks 2 --weight-gather copy-engine | --weight-gather: expected --strategy zero1, zero2 or zero3, or ranks along"
                        + " shard, beside it, which gather weights, got ddp",
                "--weight-gather copy-engine | --weight-gather: expected --strategy zero1, zero2 or zero3, or ranks along shard,"
                        + " beside it, which gather weights, got one rank",
                "--ranks 2 --strategy ddp --gradient-reduction copy-engine | --gradient-reduction: expected --strategy zero1,"
                        + " zero2 or zero3, or ranks along shard, beside it, which reduce and scatter gradients, got ddp",
                "--ranks 2 --strategy zero3 --weight-gather host | Invalid value for option '--weight-gather': expected one of"
                        + " device, copy-engine, got host",
                "--ranks 2 --cp-comm-type p2p | --cp-comm-type: expected --strategy cp, or ranks along context,"
                        + " beside it, which split tokens, got ddp",
                "--ranks 1 --strategy cp --cp-comm-type p2p | --cp-comm-type: expected --strategy cp, or ranks along"
                        + " context, beside it, which split tokens, got one rank",
                "--ranks 2 --strategy cp --form nvidia --cp-comm-type p2p --packing off | --cp-comm-type: expected a2a beside --packing off,"
                        + " for p2p and all-gather move packed keys, got p2p",
                "--ranks 2 --strategy cp --form nvidia --cp-comm-type all-gather --packing off | --cp-comm-type: expected a2a beside --packing"
                        + " off, for p2p and all-gather move packed keys, got all-gather",
                "--ranks 2 --strategy cp --cp-comm-type ring | Invalid value for option '--cp-comm-type': expected one of a2a,"
                        + " p2p, all-gather, got ring",
                "--ranks 3 --strategy tp --model 8M | --strategy: expected as many ranks for tp as divide the 20 heads of"
                        + " --model 8M, got 3",
                "--strategy hsdp --ranks 2 | --ranks: expected an even number of at least 4 beside --strategy hsdp,"
                        + " for two copies of the model, sharded among half of the ranks each, or --mesh"
                        + " replicate=R,shard=S, got 2",
                "--strategy hsdp --ranks 7 | --ranks: expected an even number of at least 4 beside --strategy hsdp,"
                        + " for two copies of the model, sharded among half of the ranks each, or --mesh"
                        + " replicate=R,shard=S, got 7",
                "--ranks 2 --shard-optimizer all-ranks | --shard-optimizer: expected --mesh, or --strategy hsdp, beside it,"
                        + " without which there is one copy, got ddp",
                "--ranks 1 --strategy hsdp --shard-optimizer all-ranks | --shard-optimizer: expected --mesh, or --strategy hsdp,"
                        + " beside it, without which there is one copy, got one rank",
                "--mesh shard=2 --shard-optimizer all | Invalid value for option '--shard-optimizer': expected one of each-copy,"
                        + " all-ranks, got all",
                "--ranks 2 --strategy zero2 --graph on | --graph: expected off or auto, or --strategy ddp or tp"
                        + " beside it, for steps with sharded weights, gradients, layers or tokens are not captured,"
                        + " got on beside"
                        + " zero2",
                "--offload optimizer --optimizer lion | --offload: expected --optimizer adamw beside optimizer, whose moments and masters are"
                        + " streamed, got lion",
                "--offload weights | Invalid value for option '--offload' (optimizer,activations): expected one of optimizer, activations, got weights",
                "--offload optimizer,activations | --offload: expected --recompute layers beside activations, for other layers keep"
                        + " more than their inputs, got none",
                "--offload optimizer --offload-layers 3 | --offload-layers: expected --offload activations beside it, got none",
                "--offload activations --recompute layers --offload-layers 0 | --offload-layers: expected at least 1, got 0",
                "--offload activations --recompute layers --graph on | --graph: expected off or auto beside --offload, for steps"
                        + " that copy from the host's memory are not captured, got on",
                "--offload optimizer --graph on | --graph: expected off or auto beside --offload, for steps that copy"
                        + " from the host's memory are not captured, got on",
                "--ranks 65536 --accumulate 65536 | --accumulate, --ranks: expected at most 2147483647 micro-batches in all, got"
                        + " 65536 on each of 65536",
                "--ranks 9 | --ranks: expected 1 to 8, for each rank needs a device of its own and the CPU reference has 8, got 9;"
                        + " the variable CHAGRES_REFERENCE_DEVICES=9 gives it more",
                "--ranks 9 --tokens-per-step 2048 | --ranks: expected 1 to 8, for each rank needs a device of its own and the"
                        + " CPU reference has 8, got 9; the variable CHAGRES_REFERENCE_DEVICES=9 gives it more",
                "--ranks 4 --tokens-per-step 2048 | --tokens-per-step: expected a multiple of 64 from 4096 on, for 4 micro-batches share it (--ranks 4),"
                        + " each with a multiple of 16 tokens and room for a sequence of --context 1024; got 2048;"
                        + " give --tokens-per-step 4096, or lower --context or --ranks",
                "--mesh replicate=2,tensor=2 --accumulate 2 --tokens-per-step 2048 | --tokens-per-step: expected a multiple of 64 from"
                        + " 4096 on, for 4 micro-batches share it (--accumulate 2 on each of 2 copies of --mesh), each with a"
                        + " multiple of 16 tokens and room for a sequence of --context 1024; got 2048; give"
                        + " --tokens-per-step 4096, or lower --context, --accumulate or the copies of --mesh",
                "--ranks 3 --accumulate 2 --context 100 --tokens-per-step 2048 | --tokens-per-step: expected a multiple of 96"
                        + " from 672 on, for 6 micro-batches share it (--accumulate 2 on each of --ranks 3), each with a multiple"
                        + " of 16 tokens and room for a sequence of --context 100; got 2048; give --tokens-per-step 2016, or"
                        + " lower --accumulate or --ranks",
                "--accumulate 0 | --accumulate: expected at least 1, got 0",
                "--accumulate 4 --tokens-per-step 2048 | --tokens-per-step: expected a multiple of 64 from 4096 on, for 4 micro-batches share it"
                        + " (--accumulate 4), each with a multiple of 16 tokens and room for a sequence of --context 1024; got"
                        + " 2048; give --tokens-per-step 4096, or lower --context or --accumulate",
                "--accumulate 2147483647 --context 64 | --tokens-per-step: expected a multiple of 34359738352 from 137438953408"
                        + " on, for 2147483647 micro-batches share it (--accumulate 2147483647), each with a multiple of 16"
                        + " tokens and room for a sequence of --context 64; got 2048, the default; lower --context or"
                        + " --accumulate",
                "--context 2 | --context: expected at least 3 (<cls>, one residue, <eos>), got 2",
                "--context -5 | --context: expected at least 3 (<cls>, one residue, <eos>), got -5",
                "--context 1000 --packing off | --context: expected a multiple of 16 without packing, got 1000",
                "--learning-rate 0 | --learning-rate: expected a positive number, got 0.0",
                "--learning-rate NaN | --learning-rate: expected a positive number, got NaN",
                "--warm-up-steps 300 | --warm-up-steps: expected 0 to 200, the number of steps, got 300",
                "--seed x | Invalid value for option '--seed': expected a whole number no larger than 9223372036854775807, got x",
                "--fasta= | --fasta: expected the name of a file, got an empty one",
                "--fasta a=0.5 b | --fasta: expected a weight above 0 for each file or for none, got b without one",
                "--fasta a=0 --fasta b=1 | --fasta: expected a weight above 0 for each file or for none, got a=0.0",
                "--fasta a=1.2.3 | --fasta: expected FILE=WEIGHT with a number such as 0.7, got a=1.2.3",
                "--unknown=drop | Invalid value for option '--unknown': expected one of refuse, unk, skip, got drop",
                "--letters=xna | Invalid value for option '--letters': expected one of protein, any, dna, rna, got xna",
                "--report= | --report: expected the name of a file, got an empty one",
                "--plot= | --plot: expected the name of a file, got an empty one",
                "--steps= | Invalid value for option '--steps': expected a whole number no larger than 2147483647, got nothing",
                "--steps 2147483648 | Invalid value for option '--steps': expected a whole number no larger than 2147483647, got"
                        + " 2147483648",
                "--learning-rate 0,001 | Invalid value for option '--learning-rate': expected a number, such as 0.001 or 1e-3, got 0,001",
                "--learning-rate 1e-60 | --learning-rate: expected a positive number, got 0.0",
                "--context 2147483647 | --context: expected at most 2147483632, as many tokens as a step can have, got"
                        + " 2147483647",
                "--plot loss.jpg | --plot: expected a name that ends with .png, got loss.jpg",
                "--fasta a --report ./a | --report: ./a is the file of --fasta; name another one",
                "--plot a.png --report a.png | --plot: a.png is the file of --report; name another one",
                "--fasta a.part --report a | --report: a is called a.part until it is whole, and that is the file of"
                        + " --fasta; name another one",
                "--report a.png.part --plot a.png | --plot: a.png is called a.png.part until it is whole, and that is the"
                        + " file of --report; name another one",
                "--report / | --report: expected the name of a file, got /",
                "--speed 3 | Unknown options: '--speed', '3'; did you mean --seed?",
                "--stratgy zero1 | Unknown options: '--stratgy', 'zero1'; did you mean --strategy?",
                "--rank=2 | Unknown option: '--rank=2'; did you mean --ranks?",
                "--nothing-like-it | Unknown option: '--nothing-like-it'",
                "fast | Unmatched argument at index 0: 'fast'"
            })
    void wrongOptionsAreToldInOneLine(String arguments, String message) {
        assertEquals(2, train(arguments.strip().split(" ", -1)));
        assertEquals("train: " + message.strip() + " (train --help lists the options)" + System.lineSeparator(), err());
        assertEquals("", out());
    }

    /** What is shared by micro-batches: at least a sequence of the context each, and a multiple of 16 tokens. */
    @ParameterizedTest
    @CsvSource({
        "false, --steps=1, 2048",
        "false, --accumulate=4, 4096",
        "false, --accumulate=3, 3072",
        "false, --accumulate=3 --context=100, 2064",
        "false, --context=2050, 2064",
        "false, --accumulate=2 --packing=off, 2048",
        "true, --steps=1, 16384",
        "true, --accumulate=4, 16384",
        "true, --accumulate=3, 16416",
        "true, --accumulate=32, 32768"
    })
    void theDefaultOfAStepsTokensIsEnoughForItsMicroBatches(boolean gpu, String options, int tokens) {
        Given given = new Given();
        var _ = new CommandLine(given).parseArgs(options.split(" ", -1));
        given.options.check();
        assertEquals(tokens, given.options.plan(gpu, 8).shape().tokensPerStep());
    }

    @ParameterizedTest
    @CsvSource({"--steps=1, ACTIVATION", "--recompute=none, NONE", "--recompute=layers, LAYERS"})
    void whatAnEsm2RecomputesIsItsActivationUnlessAsked(String option, Recomputation recomputation) {
        Given given = new Given();
        var _ = new CommandLine(given).parseArgs(option);
        TrainingPlan plan = given.options.plan(false, 1);
        assertEquals(recomputation, plan.recomputation());
        assertEquals(recomputation, ((Esm2Config) plan.model()).recomputation());
    }

    @ParameterizedTest
    @CsvSource({
        "--ranks=4, 4096",
        "--ranks=4 --strategy=zero3, 4096",
        "--ranks=4 --strategy=hsdp --accumulate=2, 8192",
        "--ranks=4 --strategy=tp, 2048",
        "--mesh=replicate=2;tensor=2 --accumulate=2, 4096"
    })
    void ranksShareEnoughTokens(String options, int tokens) {
        theDefaultOfAStepsTokensIsEnoughForItsMicroBatches(false, options.replace(';', ','), tokens);
    }

    @Test
    void moreRanksThanGpusAreToldWithTheirNumber() {
        platform.gpu = true;
        assertEquals(2, train("--ranks", "16"));
        assertEquals(
                "train: --ranks: expected 1 to 8, for each rank needs a device of its own and this process sees 8 GPUs, got 16"
                        + " (train --help lists the options)" + System.lineSeparator(),
                err());
    }

    @Test
    void aWrongPropertyOfCollectivesIsToldByItsOwnName() {
        System.setProperty("chagres.collective.checks", "ful");
        try {
            assertEquals(2, train("--ranks", "2", "--context", "256"));
            assertEquals(
                    "train: -Dchagres.collective.checks: expected arguments or full, got \"ful\" (train --help lists the options)"
                            + System.lineSeparator(),
                    err());
            assertEquals(0, train("--steps", "1"), this::err);
        } finally {
            System.clearProperty("chagres.collective.checks");
        }
    }

    @Test
    void ranksThatPollTheirCallsTrainWithoutGraphs() {
        System.setProperty("chagres.collective.calls", "non-blocking");
        try {
            assertEquals(2, train("--ranks", "2", "--context", "256", "--graph", "on"));
            assertEquals(
                    "train: --graph: expected off or auto beside -Dchagres.collective.calls=non-blocking, for collectives whose"
                            + " calls are polled are not captured, got on (train --help lists the options)"
                            + System.lineSeparator(),
                    err());
            assertEquals(0, train("--ranks", "2", "--context", "256", "--steps", "2"), this::err);
            assertEquals(0, train("--graph", "on", "--steps", "1"), this::err);
        } finally {
            System.clearProperty("chagres.collective.calls");
        }
    }

    @Test
    void helpNamesEveryOption() {
        assertEquals(0, train("--help"));
        for (String option : List.of(
                "model",
                "fasta",
                "steps",
                "tokens-per-step",
                "accumulate",
                "ranks",
                "strategy",
                "mesh",
                "shard-optimizer",
                "reshard",
                "gradient-sync",
                "context",
                "packing",
                "recipe",
                "product-plans",
                "sm-margin",
                "product-sm-margin",
                "graph",
                "fp8-statistics",
                "learning-rate",
                "seed",
                "provider",
                "report",
                "plot")) {
            assertTrue(out().contains("--" + option), option);
        }
        assertEquals("", err());
    }
}
