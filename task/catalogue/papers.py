"""The papers that the catalogue names, by their number at arXiv, or by their DOI if they are not there."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Paper:
    """Where an algorithm comes from."""

    authors: str
    year: int
    title: str
    number: str  # at arXiv, or a DOI
    where: str  # algorithm or equation number in the paper

    @property
    def source(self) -> str:
        """Where it is kept, in words."""
        return f"doi {self.number}" if "/" in self.number else f"arXiv {self.number}"

    @property
    def url(self) -> str:
        """Where it can be read."""
        return f"https://{'doi.org' if '/' in self.number else 'arxiv.org/abs'}/{self.number}"


# Number, year and authors; below them the title.
_PAPERS = """
2111.04263 2021 Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama
    Federated Learning Based on Dynamic Regularization
1912.00818 2019 Arivazhagan, Aggarwal, Singh, Choudhary
    Federated Learning with Personalization Layers
1802.04434 2018 Bernstein, Wang, Azizzadenesheli, Anandkumar
    signSGD: Compressed Optimisation for Non-Convex Problems
1703.02757 2017 Blanchard, El Mhamdi, Guerraoui, Stainer
    Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent
1709.05929 2018 Chang, Balachandar, Lam, Yi, Brown, Beers, Rosen, Rubin, Kalpathy-Cramer
    Distributed Deep Learning Networks among Institutions for Medical Imaging
2012.13995 2021 Cao, Fang, Liu, Gong
    FLTrust: Byzantine-robust Federated Learning via Trust Bootstrapping
10.1145/2939672.2939785 2016 Chen, Guestrin
    XGBoost: A Scalable Tree Boosting System
2107.00778 2022 Chen, Chao
    On Bridging Generic and Personalized Federated Learning for Image Classification
2010.01243 2020 Cho, Wang, Joshi
    Client Selection in Federated Learning: Convergence Analysis and Power-of-Choice Selection Strategies
2102.07089 2021 Collins, Hassani, Mokhtari, Shakkottai
    Exploiting Shared Representations for Personalized Federated Learning
1910.01991 2019 Sattler, Müller, Samek
    Clustered Federated Learning: Model-Agnostic Distributed Multi-Task Optimization under Privacy Constraints
2003.13461 2020 Deng, Kamani, Mahdavi
    Adaptive Personalized Federated Learning
2006.08848 2020 Dinh, Tran, Nguyen
    Personalized Federated Learning with Moreau Envelopes
1802.07927 2018 El Mhamdi, Guerraoui, Rouault
    The Hidden Vulnerability of Distributed Learning in Byzantium
2002.07948 2020 Fallah, Mokhtari, Ozdaglar
    Personalized Federated Learning: A Meta-Learning Approach
2203.11751 2022 Gao, Fu, Li, Chen, Xu, Xu
    FedDC: Federated Learning with Non-IID Data via Local Drift Decoupling and Correction
10.1109/TIT.1982.1056489 1982 Lloyd
    Least Squares Quantization in PCM
10.1080/14786440109462720 1901 Pearson
    On Lines and Planes of Closest Fit to Systems of Points in Space
10.1080/00401706.1970.10488634 1970 Hoerl, Kennard
    Ridge Regression: Biased Estimation for Nonorthogonal Problems
10.1093/ije/dyu188 2014 Gaye, Marcon, Isaeva, LaFlamme, Turner and others
    DataSHIELD: taking the analysis to the data, not the data to the analysis
10.1080/01621459.1958.10501452 1958 Kaplan, Meier
    Nonparametric Estimation from Incomplete Observations
10.1001/jama.1982.03320430047030 1982 Harrell, Califf, Pryor, Lee, Rosati
    Evaluating the Yield of Medical Tests
10.1111/j.2517-6161.1972.tb00899.x 1972 Cox
    Regression Models and Life-Tables
10.2307/2344614 1972 Nelder, Wedderburn
    Generalized Linear Models
1711.10677 2017 Hardy, Henecka, Ivey-Law, Nock, Patrini, Smith, Thorne
    Private Federated Learning on Vertically Partitioned Data via Entity Resolution and Additively Homomorphic Encryption
1901.08755 2019 Cheng, Fan, Jin, Liu, Chen, Papadopoulos, Yang
    SecureBoost: A Lossless Federated Learning Framework
2006.04088 2020 Ghosh, Chung, Yin, Ramchandran
    An Efficient Framework for Clustered Federated Learning
1909.06335 2019 Hsu, Qi, Brown
    Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification
2007.03797 2021 Huang, Chu, Zhou, Wang, Liu, Pei, Zhang
    Personalized Cross-Silo Federated Learning on Non-IID Data
2301.09604 2023 Jhunjhunwala, Wang, Joshi
    FedExP: Speeding Up Federated Averaging via Extrapolation
2012.10333 2021 Karimireddy, He, Jaggi
    Learning from History for Byzantine Robust Optimization
2008.03606 2021 Karimireddy, Jaggi, Kale, Mohri, Reddi, Stich, Suresh
    Mime: Mimicking Centralized Stochastic Algorithms in Federated Learning
2201.03172 2024 Kim, Kim, Han
    Communication-Efficient Federated Learning with Accelerated Client Gradient
2106.03097 2022 Lee, Jeong, Shin, Bae, Yun
    Preservation of the Global Knowledge by Not-True Distillation in Federated Learning
1812.07108 2019 Ji, Pan, Long, Li, Jiang, Huang
    Learning Private Neural Language Modeling with Attentive Aggregation
1910.06378 2020 Karimireddy, Kale, Mohri, Reddi, Stich, Suresh
    SCAFFOLD: Stochastic Controlled Averaging for Federated Learning
1610.02527 2016 Konečný, McMahan, Ramage, Richtárik
    Federated Optimization: Distributed Machine Learning for On-Device Intelligence
2010.06081 2021 Lai, Zhu, Madhyastha, Chowdhury
    Oort: Efficient Federated Learning via Guided Participant Selection
2006.07242 2020 Lin, Kong, Stich, Jaggi
    Ensemble Distillation for Robust Model Fusion in Federated Learning
1612.01474 2017 Lakshminarayanan, Pritzel, Blundell
    Simple and Scalable Predictive Uncertainty Estimation using Deep Ensembles
1705.09056 2017 Lian, Zhang, Zhang, Hsieh, Zhang, Liu
    Can Decentralized Algorithms Outperform Centralized Algorithms? A Case Study for Decentralized Parallel SGD
10.1007/978-3-030-86486-6_36 2021 Li, Zhan, Shao, Li, Song
    FedPHP: Federated Personalization with Inherited Private Models
2001.01523 2020 Liang, Liu, Liu, Salakhutdinov, Morency
    Think Locally, Act Globally: Federated Learning with Local and Global Representations
1905.06641 2020 Liu, Zhang, Song, Letaief
    Client-Edge-Cloud Hierarchical Federated Learning
2007.01162 2021 Li, Beirami, Sanjabi, Smith
    Tilted Empirical Risk Minimization
1910.03581 2019 Li, Wang
    FedMD: Heterogenous Federated Learning via Model Distillation
2103.16257 2021 Li, He, Song
    Model-Contrastive Federated Learning
2012.04221 2021 Li, Hu, Beirami, Smith
    Ditto: Fair and Robust Federated Learning Through Personalization
2102.07623 2021 Li, Jiang, Zhang, Kamp, Dou
    FedBN: Federated Learning on Non-IID Features via Local Batch Normalization
1812.06127 2020 Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith
    Federated Optimization in Heterogeneous Networks
1905.10497 2020 Li, Sanjabi, Beirami, Smith
    Fair Resource Allocation in Federated Learning
2110.08394 2022 Luo, Wu
    Adapt to Adaptation: Learning Personalization for Cross-Silo Federated Learning
2108.10252 2021 Marfoq, Neglia, Bellet, Kameni, Vidal
    Federated Multi-Task Learning under a Mixture of Distributions
2111.09360 2022 Marfoq, Neglia, Vidal, Kameni
    Personalized Federated Learning through Local Memorization
1602.05629 2017 McMahan, Moore, Ramage, Hampson, Agüera y Arcas
    Communication-Efficient Learning of Deep Networks from Decentralized Data
2106.06639 2022 Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba
    Federated Learning with Buffered Asynchronous Aggregation
1902.00146 2019 Mohri, Sivek, Suresh
    Agnostic Federated Learning
1804.08333 2019 Nishio, Yonetani
    Client Selection for Federated Learning with Heterogeneous Resources in Mobile Edge
1912.13445 2022 Pillutla, Kakade, Harchaoui
    Robust Aggregation for Federated Learning
2003.00295 2021 Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan
    Adaptive Federated Optimization
10.14722/ndss.2021.24498 2021 Shejwalkar, Houmansadr
    Manipulating the Byzantine: Optimizing Model Poisoning Attacks and Defenses for Federated Learning
1705.10467 2017 Smith, Chiang, Sanjabi, Talwalkar
    Federated Multi-Task Learning
2105.00243 2022 Tan, Long, Liu, Zhou, Lu, Jiang, Zhang
    FedProto: Federated Prototype Learning across Heterogeneous Clients
2309.16825 2024 Tavakoli, Emerson, Ayromlou, Jewell, Krishnan, Zhang, Verma, Razak
    A Comprehensive View of Personalized Federated Learning on Heterogeneous Clinical Datasets
1812.00564 2018 Vepakomma, Gupta, Swedish, Raskar
    Split Learning for Health: Distributed Deep Learning without Sharing Raw Patient Data
10.7939/R32805C45 2017 Wang
    CO-OP: Cooperative Machine Learning from Mobile Devices
2007.07481 2020 Wang, Liu, Liang, Joshi, Poor
    Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization
1910.10252 2019 Wang, Mathews, Kiddon, Eichner, Beaufays, Ramage
    Federated Evaluation of On-device Personalization
1804.05271 2019 Wang, Tuor, Salonidis, Leung, Makaya, He, Chan
    Adaptive Federated Learning in Resource Constrained Edge Computing Systems
1911.00222 2020 Wei, Li, Ding, Ma, Yang, Farokhi, Jin, Quek, Poor
    Federated Learning with Differential Privacy: Algorithms and Performance Analysis
1903.03934 2019 Xie, Koyejo, Gupta
    Asynchronous Federated Optimization
1802.10116 2018 Xie, Koyejo, Gupta
    Generalized Byzantine-tolerant SGD
2106.10874 2021 Xu, Wang, Wang, Yao
    FedCM: Federated Learning with Client-level Momentum
1803.01498 2018 Yin, Chen, Ramchandran, Bartlett
    Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates
2209.00189 2022 Zhang, Li, Li, Xu, Wu, Ding, Wu
    Federated Learning with Label Distribution Skew via Logits Calibration
2311.14975 2023 Zhang, Hua, Cao, Wang, Song, Xue, Ma, Guan
    Eliminating Domain Bias for Federated Learning in Representation Space
2212.01197 2023 Zhang, Hua, Wang, Song, Xue, Ma, Guan
    FedALA: Adaptive Local Aggregation for Personalized Federated Learning
2106.06042 2022 Oh, Kim, Yun
    FedBABU: Towards Enhanced Representation for Federated Image Classification
2012.08565 2021 Zhang, Sapra, Fidler, Yeung, Alvarez
    Personalized Federated Learning with First Order Model Optimization
"""  # noqa: E501 - a title


_LINES = _PAPERS.strip().splitlines()
_HEADS = (line.split(" ", 2) for line in _LINES[::2])
_PAIRS = zip(_HEADS, _LINES[1::2], strict=True)
_KNOWN = {number: (who, int(year), title.strip()) for (number, year, who), title in _PAIRS}


def paper(number: str, where: str = "Algorithm 1") -> Paper:
    """Return a paper by its number; `where` in it is the algorithm."""
    return Paper(*_KNOWN[number], number, where)
