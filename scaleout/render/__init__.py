"""ChatRequest and CompletionRequest → GenerateRequest. Knows no engine, no output format, no wire JSON and no HTTP."""

from scaleout.render.prompt import ModelFacts, Prompt, RenderSettings
from scaleout.render.renderer import OutputFacts, Renderer
from scaleout.render.sampling import SamplingDefaults

__all__ = ["ModelFacts", "OutputFacts", "Prompt", "RenderSettings", "Renderer", "SamplingDefaults"]
