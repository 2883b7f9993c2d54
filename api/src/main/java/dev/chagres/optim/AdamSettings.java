package dev.chagres.optim;

import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.zip.CRC32C;

/**
 * Formats the settings that ranks must have in common.
 *
 * <p>Threading: immutable.
 */
final class AdamSettings {
    private AdamSettings() {}

    /** Returns, for ranks with other parts of a model, the numbers of the method and of each group. */
    static String ofModel(AdamW.Config config, List<ParameterGroup> groups) {
        StringBuilder text = new StringBuilder("AdamW").append(config.text());
        groups.forEach(group -> text.append(" with ").append(group));
        return text.toString();
    }

    /**
     * Returns, for ranks that update the same weights, the numbers of the method and, of each group, its own ones and which parameters it
     * has.
     */
    static String ofWeights(Parameters parameters, AdamW.Config config, List<ParameterGroup> groups) {
        StringBuilder text = new StringBuilder("AdamW").append(config.text());
        for (int i = 0; i < groups.size(); i++) {
            int number = i + 1;
            List<Parameter> members = parameters.all().stream()
                    .filter(parameter -> !parameter.isFrozen() && UpdateRange.groupOf(parameter, groups) == number)
                    .toList();
            CRC32C names = new CRC32C();
            members.forEach(member -> names.update((member.name() + "\n").getBytes(StandardCharsets.UTF_8)));
            text.append(" with ")
                    .append(groups.get(i))
                    .append(" of ")
                    .append(members.size())
                    .append(members.size() == 1 ? " parameter" : " parameters")
                    .append(" (checksum of their names ")
                    .append(Long.toHexString(names.getValue()))
                    .append(')');
        }
        return text.toString();
    }
}
