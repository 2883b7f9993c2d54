package dev.chagres.trainer.finetune;

import dev.chagres.bindings.ForeignText;
import dev.chagres.parameter.LoraConfig;
import dev.chagres.parameter.LoraConfig.Scaling;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import picocli.CommandLine.ITypeConverter;
import picocli.CommandLine.TypeConversionException;

/** Reads {@code r=16,alpha=32,dropout=0.05,scaling=root,target=query,value}: what stands behind target without a name is a target, too. */
final class LoraOption implements ITypeConverter<LoraConfig> {
    private static final String USUAL = "usual";

    /**
     * Returns what was asked for of a model with the products {@code known}.
     *
     * @param usual targets where none were asked for
     * @throws IllegalArgumentException when a target is none of them
     */
    static LoraConfig of(LoraConfig asked, List<String> known, String... usual) {
        if (asked.targets().equals(Set.of(USUAL))) {
            return asked.withTargets(usual);
        }
        for (String target : asked.targets()) {
            if (!known.contains(target)) {
                throw new IllegalArgumentException("--lora: target: expected some of " + String.join(", ", known)
                        + ", got " + ForeignText.plain(target));
            }
        }
        return asked;
    }

    @Override
    public LoraConfig convert(String value) {
        int rank = 16;
        float alpha = 0;
        float dropout = 0;
        Scaling scaling = Scaling.RANK;
        List<String> targets = new ArrayList<>();
        boolean inTargets = false;
        for (String part : value.split(",", -1)) {
            int end = part.indexOf('=');
            String key = end < 0 ? inTargets ? "target" : "" : part.substring(0, end);
            String given = part.substring(end + 1);
            inTargets = key.equals("target");
            switch (key) {
                case "r" -> rank = (int) number(key, given);
                case "alpha" -> alpha = number(key, given);
                case "dropout" -> dropout = number(key, given);
                case "scaling" -> scaling = scaling(given);
                case "target" -> targets.add(given);
                default ->
                    throw new TypeConversionException(
                            "expected r=, alpha=, dropout=, scaling= or target=, got " + ForeignText.plain(part));
            }
        }
        String[] names = targets.isEmpty() ? new String[] {USUAL} : targets.toArray(String[]::new);
        try {
            return LoraConfig.of(rank, names)
                    .withAlpha(alpha == 0 ? 2 * rank : alpha)
                    .withDropout(dropout)
                    .withScaling(scaling);
        } catch (IllegalArgumentException wrong) {
            throw new TypeConversionException(String.valueOf(wrong.getMessage()));
        }
    }

    private static float number(String key, String given) {
        try {
            return key.equals("r") ? Integer.parseInt(given) : Float.parseFloat(given);
        } catch (NumberFormatException e) {
            throw new TypeConversionException(key + ": expected a " + (key.equals("r") ? "whole " : "") + "number, got "
                    + ForeignText.plain(given));
        }
    }

    private static Scaling scaling(String given) {
        return switch (given) {
            case "rank" -> Scaling.RANK;
            case "root" -> Scaling.ROOT_OF_RANK;
            default ->
                throw new TypeConversionException("scaling: expected rank or root, got " + ForeignText.plain(given));
        };
    }
}
