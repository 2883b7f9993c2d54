package dev.chagres.pipeline;

import dev.chagres.internal.ranks.AllGatherLongs;
import dev.chagres.nccl.Communicator;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.PipelineStages;
import dev.chagres.parameter.PipelineStages.Tied;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.zip.CRC32C;

/**
 * The tied parameters of a pipeline: those that several ranks have.
 *
 * <p>Threading: the device's thread.
 *
 * @param communicators of the ranks that have parameters in common with this one; closed by whoever made this
 */
record PipelineTies(List<Communicator> communicators) {
    /** Makes communicators of ranks with common parameters, and registers them with the parameters; each rank calls it. */
    static PipelineTies of(PipelinePlan plan, Parameters parameters, Communicator ranks) {
        Map<BitSet, List<Parameter>> shared = new LinkedHashMap<>();
        for (Parameter parameter : plan.whole().parameters()) {
            BitSet holders = plan.ranksOf(parameter);
            if (holders.cardinality() > 1 && !parameter.isFrozen()) {
                shared.computeIfAbsent(holders, key -> new ArrayList<>()).add(parameter);
            }
        }
        List<Communicator> communicators = new ArrayList<>();
        List<Tied> tied = new ArrayList<>();
        Set<Parameter> countedElsewhere = new HashSet<>();
        try {
            shared.forEach((holders, members) -> {
                if (!holders.get(ranks.rank())) {
                    ranks.splitWithoutPart();
                    return;
                }
                Communicator among = ranks.split(0, ranks.rank(), ranks.config().withName("tied"));
                communicators.add(among);
                for (Parameter member : members) {
                    tied.add(new Tied(member, among));
                    if (holders.nextSetBit(0) != ranks.rank()) {
                        countedElsewhere.add(member);
                    }
                }
            });
            PipelineStages stages =
                    new PipelineStages(parameters.scope(), ranks, tied, countedElsewhere, plan::parametersOf);
            parameters.adopt(stages);
            parameters.access().stages(stages);
        } catch (RuntimeException | Error failure) {
            communicators.forEach(Communicator::close);
            throw failure;
        }
        return new PipelineTies(communicators);
    }

    /** Checks that all ranks have the same plan; with different plans they would hang. */
    static void ensureSame(PipelinePlan plan, Parameters parameters, long width, Communicator ranks) {
        CRC32C checksum = new CRC32C();
        String head = width + " " + parameters.dtype() + " " + plan.stages();
        checksum.update(head.getBytes(StandardCharsets.UTF_8));
        for (Parameter parameter : plan.whole().parameters()) {
            String text = parameter.name()
                    + parameter.wholeShape()
                    + parameter.ownType()
                    + parameter.isFrozen()
                    + plan.stagesOf(parameter);
            checksum.update(text.getBytes(StandardCharsets.UTF_8));
        }
        int other = AllGatherLongs.firstOther(ranks, parameters.scope().stream(), checksum.getValue());
        if (other > 0) {
            throw new IllegalStateException("plan: expected the same on all ranks of the pipeline, got another on"
                    + " rank " + other
                    + " than on rank 0; declare the whole model on each, with the same types,"
                    + " stages and width and the same parameters frozen");
        }
    }
}
